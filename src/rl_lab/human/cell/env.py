"""A robot behind a `Driver` as a gymnasium environment: limits, time limit, observations, success. Knows no torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from rl_lab.core.errors import ConfigError
from rl_lab.environments.hosting.family_options import check_at_least, check_choice, height_and_width
from rl_lab.human.cell.driver import Array, Driver, Layout, SimulatedDriver
from rl_lab.human.cell.senses import Senses
from rl_lab.human.cell.watchdog import Watchdog

OBSERVATIONS = ("vector", "pixels", "all")
Observations = Literal["vector", "pixels", "all"]
_FRESH_STEPS = 3.0  # control steps after which a command to a robot is stale
logger = logging.getLogger(__name__)


class CellEnv(gymnasium.Env[Any, Array]):
    """Steps a robot. The reward is 1 when the task is done, which ends the episode, and 0 before.

    A command is cut to the layout's limits here, whoever gives it. One that is not finite, comes too late or leads to a
    pose out of bounds is not carried out: the robot holds, and `is_held` of the step's info says so. A person may call
    an episode a success, a failure or off (`instruct`): its last step then holds.
    An episode of a real robot cannot be taken up again: see `SimulatedCellEnv` for those that can.

    Args:
        driver: Of the robot.
        name: Of the environment.
        observations: vector (all numbers in one row), pixels (a dict of the robot's `state` and the cameras: what a
            robot in a hall has) or all (also `objects`).
        cameras: Names of those that are seen; null: all.
        size: Of their pictures: one number, or height and width.
        max_episode_steps: Control steps after which an episode is truncated.
        max_action_age_s: Seconds between what was seen and a command after which that is stale; the robot holds then,
            and while none comes. Null: commands do not age; auto: three control steps of a robot, and a simulation
            waits.
        max_same_pictures: Looks in succession at which a camera shows the same picture though the robot has moved; it
            is frozen then, and the robot holds until it is not. Null: never; auto: 5 of a robot, never of a simulation.
            A camera must bring at least steps_per_second / max_same_pictures new pictures per second.
        render_mode: rgb_array or null; renderings are of the first camera.
        render_size: Of a rendering: one number, or height and width.
    """

    _max_same_pictures: int | None = 5
    remembers_episodes = True  # a scene is not what it was only because the same commands are given again

    def __init__(
        self,
        driver: Driver,
        name: str,
        *,
        observations: Observations = "vector",
        cameras: Sequence[str] | None = None,
        size: int | Sequence[int] = 64,
        max_episode_steps: int = 100,
        max_action_age_s: float | Literal["auto"] | None = "auto",
        max_same_pictures: int | Literal["auto"] | None = "auto",
        render_mode: Literal["rgb_array"] | None = None,
        render_size: int | Sequence[int] = 240,
    ) -> None:
        check_choice("observations", observations, OBSERVATIONS)
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        check_at_least("max_episode_steps", max_episode_steps, 1)
        layout = driver.layout
        max_age_s = self._max_age_s(layout) if max_action_age_s == "auto" else max_action_age_s
        if max_age_s is not None and not (isinstance(max_age_s, int | float) and max_age_s > 0):
            raise ConfigError(f"environment.env_kwargs.max_action_age_s must be above 0, auto or null, got {max_age_s}")
        max_same = self._max_same_pictures if max_same_pictures == "auto" else max_same_pictures
        if max_same is not None and not (isinstance(max_same, int) and max_same > 0):
            raise ConfigError(f"environment.env_kwargs.max_same_pictures must be above 0, auto or null, got {max_same}")
        for camera in cameras or ():
            check_choice("cameras", camera, layout.cameras)
        self._driver, self._layout, self._observations = driver, layout, observations
        self._cameras = tuple(layout.cameras if cameras is None else cameras)
        self._size, self._render_size = height_and_width("size", size), height_and_width("render_size", render_size)
        self.max_episode_steps, self.render_mode = max_episode_steps, render_mode
        self.steps_per_second = layout.steps_per_second
        self.spec = EnvSpec(name, max_episode_steps=max_episode_steps)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(layout.steps_per_second)}
        self.action_space = spaces.Box(layout.low.astype(np.float32), layout.high.astype(np.float32))
        self.observation_space = self._make_observation_space()
        names = ("state",) if observations == "pixels" else tuple(layout.numbers)
        seen = () if observations == "vector" else self._cameras
        self._senses = Senses(driver, names, seen, self._size, max_same)
        self._elapsed, self._last = 0, driver.home()  # not finite: not known, and asked for before the next command
        self._ending: str | None = None  # what a person called the episode, which ends with the next step
        self._watchdog = None if max_age_s is None else Watchdog(driver.hold, max_age_s)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `seed` begins a new random stream."""
        super().reset(seed=seed)
        self._is_in_time()  # nobody is waited for while a scene is set up
        with self._holding_on_failure():
            self._driver.reset(self.np_random)
            self._elapsed, self._last, self._ending = 0, self._driver.home(), None
            return self._seen(), {"prompt": self._layout.prompt, "is_success": False}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out one command, as far as the limits allow."""
        with self._holding_on_failure():
            return self._step(action)

    def _step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_in_time = self._is_in_time() and self._ending is None
        command = self._within_limits(np.asarray(action, np.float64))
        is_finite = bool(np.isfinite(action).all() and np.isfinite(command).all())
        is_held = not (is_in_time and is_finite and self._is_pose_allowed(command)) or self._senses.is_blind
        if is_held:
            self._driver.hold()
            self._last = self._driver.home()
        else:
            self._last = command
            self._driver.act(command)
        self._elapsed += 1
        is_success = self._driver.is_success() if self._ending is None else self._ending == "success"
        terminated = is_success or self._ending == "failure"
        truncated = (self._elapsed >= self.max_episode_steps or self._ending == "abort") and not terminated
        if terminated or truncated:
            self._driver.hold()
        info = {"is_success": is_success, "is_held": is_held}
        return self._seen(), float(is_success), terminated, truncated, info

    def instruct(self, instruction: str) -> None:
        """Hold, wait for a command from now on, or end the episode with the next step: `VectorEnv.instruct`."""
        if instruction == "hold":
            self._driver.hold()
        elif instruction == "fresh":
            self._await_command()
        else:
            self._ending = instruction

    def describe(self) -> dict[str, Any]:
        """Return what a policy must know of the robot where it is deployed."""
        layout, watchdog = self._layout, self._watchdog
        max_age_s = None if watchdog is None else watchdog.max_age_s
        return {
            "prompt": layout.prompt,
            "actions": list(layout.actions),
            "action_low": layout.low.tolist(),
            "action_high": layout.high.tolist(),
            "observations": {name: list(entries) for name, entries in layout.numbers.items()},
            "cameras": list(self._cameras),
            "limits": {**layout.limits(), "max_action_age_s": max_age_s},
            "steps_per_second": layout.steps_per_second,
        }

    def measured(self) -> dict[str, Any] | None:
        """Return how what was executed is told from the robot's `state` before and after a step; None: it is not."""
        layout = self._layout
        if not layout.measured:
            return None
        before = 0
        if self._observations == "vector":  # `state` lies among the other numbers
            names = list(layout.numbers)
            before = sum(len(layout.numbers[name]) for name in names[: names.index("state")])
        entries = [
            (layout.actions.index(action), layout.numbers["state"].index(entry))
            for action, entry in layout.measured.items()
        ]
        return {
            "key": "" if self._observations == "vector" else "state",
            "entries": tuple((action, before + entry) for action, entry in entries),
            "low": tuple(layout.unit * float(layout.low[action]) for action, _ in entries),
            "high": tuple(layout.unit * float(layout.high[action]) for action, _ in entries),
            "is_change": layout.is_change,
        }

    def render(self) -> Array | None:
        """Return a picture of the first camera [H, W, 3], or None without a render mode."""
        return None if self.render_mode is None else self._driver.draw(self._layout.cameras[0], *self._render_size)

    def close(self) -> None:
        """Let go of the robot, which stands still."""
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None
        try:
            self._driver.hold()
        finally:
            self._driver.close()

    def _max_age_s(self, layout: Layout) -> float | None:
        """Return how old a command may be where nobody says."""
        return _FRESH_STEPS / layout.steps_per_second

    def _within_limits(self, command: Array) -> Array:
        """Return the command cut to the limits; not finite where nobody knows from where on."""
        layout = self._layout
        if not np.isfinite(self._last).all():
            self._last = self._driver.home()
        command = np.clip(command, self._last - layout.max_step, self._last + layout.max_step)
        return np.clip(command, layout.low, layout.high)

    def _is_pose_allowed(self, command: Array) -> bool:
        """Return whether the tool stays where it may be, as far as the driver can tell."""
        pose, layout = self._driver.pose(command), self._layout
        if pose is None or layout.pose_low is None or layout.pose_high is None:
            return True
        return bool(((pose >= layout.pose_low) & (pose <= layout.pose_high)).all())

    @contextmanager
    def _holding_on_failure(self) -> Iterator[None]:
        """Let the robot stand still before anything else happens to an error of it, its cameras or its commands."""
        try:
            yield
        except BaseException:
            self._hold_after_failure()
            raise

    def _hold_after_failure(self) -> None:
        """Hold; a robot that does not listen is left to the watchdog, which tells it again until it does."""
        try:
            self._driver.hold()
        except Exception as error:  # noqa: BLE001  (a driver is foreign code, and the first error is the one to tell)
            logger.error("the robot does not hold after an error: %s: %s", type(error).__name__, error)
            if self._watchdog is not None:
                self._watchdog.expire()

    def _is_in_time(self) -> bool:
        """Take the word from the watchdog and return whether a command that comes now is fresh."""
        return self._watchdog is None or self._watchdog.claim()

    def _seen(self) -> Any:
        """Look at the robot, from when on a command is waited for."""
        seen = self._observe()
        self._await_command()
        return seen

    def _await_command(self) -> None:
        if self._watchdog is not None:
            self._watchdog.saw()

    def _make_observation_space(self) -> spaces.Space[Any]:
        numbers = {name: _numbers(len(entries)) for name, entries in self._layout.numbers.items()}
        if self._observations == "vector":
            return _numbers(sum(len(entries) for entries in self._layout.numbers.values()))
        if self._observations == "pixels":
            numbers = {"state": numbers["state"]}
        pictures = {camera: spaces.Box(0, 255, (*self._size, 3), np.uint8) for camera in self._cameras}
        return spaces.Dict({**numbers, **pictures})

    def _observe(self) -> Any:
        numbers, pictures = self._senses.look()
        if self._observations == "vector":
            return np.concatenate(list(numbers.values()))
        return {**numbers, **pictures}


class SimulatedCellEnv(CellEnv):
    """A simulated robot, whose running episode comes back to the bit; options as those of `CellEnv`."""

    _driver: SimulatedDriver
    _max_same_pictures = None  # where nothing moves that it sees, a simulated camera shows the same to the bit

    def _max_age_s(self, layout: Layout) -> float | None:
        """A simulation waits."""
        return None

    def get_state(self) -> dict[str, Any]:
        """Return the simulation, the last command and how long the episode has run."""
        return {"driver": self._driver.get_state(), "last": self._last.copy(), "elapsed": self._elapsed}

    def begin_at(self, observation: Any) -> Any:
        """Begin an episode where another one was recorded, and return what is seen there; `objects` must be shown."""
        self._driver.reset(self.np_random)
        self._driver.place(self._numbers(observation))
        self._elapsed, self._last, self._ending = 0, self._driver.home(), None
        return self._observe()

    def _numbers(self, observation: Any) -> dict[str, Array]:
        """Return the numbers of an observation by name."""
        if self._observations != "vector":
            return {name: observation[name] for name in self._layout.numbers if name in observation}
        ends = np.cumsum([len(entries) for entries in self._layout.numbers.values()])
        return dict(zip(self._layout.numbers, np.split(observation, ends[:-1]), strict=True))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state` of any copy of this environment."""
        self._driver.set_state(state["driver"])
        self._last, self._elapsed = np.array(state["last"], np.float64), int(state["elapsed"])
        self._ending = None  # a word on one episode is none on another


def _numbers(width: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (width,), np.float32)
