"""The dm_control suite (Tassa et al., 2018) as gymnasium environments: `dm_control/<domain>-<task>`.

A time limit is a truncation; only a task that says so (discount 0) terminates. Every episode seeds the task's own
random stream from the environment's, so that nothing random is left outside `np_random` and the saved state.
Knows no torch, so that worker processes start light.
"""

from __future__ import annotations

import ctypes.util
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rl_lab.environments.exact.dm_control import SimulatorState
from rl_lab.environments.hosting.family_options import check_at_least, check_choice, height_and_width, unknown_task
from rl_lab.environments.hosting.foreign import load_package

PREFIX = "dm_control/"
OBSERVATIONS = ("vector", "dict", "pixels", "pixels+state")
OFFSCREEN = {"egl": "EGL", "osmesa": "OSMesa"}  # values of MUJOCO_GL and the system library each needs
UNBOUNDED = 1e10  # what MuJoCo says of a control without limits

Observations = Literal["vector", "dict", "pixels", "pixels+state"]
Array = NDArray[Any]


def make_env(name: str, **env_kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return the task `dm_control/<domain>-<task>`; `env_kwargs` are the options of `DmControlEnv`."""
    suite = import_suite(name)
    domain, _, task = name.removeprefix(PREFIX).partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        raise unknown_task(name, (f"{PREFIX}{domain}-{task}" for domain, task in suite.ALL_TASKS))
    return DmControlEnv(domain, task, **env_kwargs)


def import_suite(name: str = PREFIX) -> Any:
    """Return `dm_control.suite`, which chooses how to draw while it is imported: without a display not by a window."""
    if not any(variable in os.environ for variable in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")):
        found = (backend for backend, library in OFFSCREEN.items() if ctypes.util.find_library(library))
        os.environ["MUJOCO_GL"] = next(found, "disable")
    suite = load_package("dm_control.suite", name, "mujoco")
    logging.getLogger("absl").addFilter(_is_news)
    return suite


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what dm_control's own models are warned of; nobody here can mend them."""
    return "deprecated" not in record.getMessage()


class DmControlEnv(gymnasium.Env[Any, Array]):
    """One task of the suite.

    Args:
        domain: Of the suite, e.g. cartpole.
        task: Of the domain, e.g. swingup.
        observations: vector (all of the state, by sorted name), dict (each quantity by name), pixels, or pixels+state
            (a dict of `pixels` and `state`).
        size: Of the pixels: one number, or height and width.
        camera_id: The number or name of the camera that pixels and renderings are taken with; -1 is the free one.
        render_mode: rgb_array or null.
        render_size: Of a rendering: one number, or height and width.
        max_episode_steps: Env steps after which an episode is truncated; null: the task's own, 1000 but for lqr.
        task_kwargs: Further arguments of the task; `random` (0) draws what is drawn once, such as lqr's springs.
        environment_kwargs: Further arguments of `dm_control.rl.control.Environment`, e.g. control_timestep.
        visualize_reward: Let colours show the reward.
    """

    def __init__(
        self,
        domain: str,
        task: str,
        *,
        observations: Observations = "vector",
        size: int | Sequence[int] = 64,
        camera_id: int | str = 0,
        render_mode: Literal["rgb_array"] | None = None,
        render_size: int | Sequence[int] = 240,
        max_episode_steps: int | None = None,
        task_kwargs: Mapping[str, Any] | None = None,
        environment_kwargs: Mapping[str, Any] | None = None,
        visualize_reward: bool = False,
    ) -> None:
        check_choice("observations", observations, OBSERVATIONS)
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self._observations, self.render_mode = observations, render_mode
        self._size, self._render_size = height_and_width("size", size), height_and_width("render_size", render_size)
        self._camera_id = camera_id
        task_kwargs, environment_kwargs = {"random": 0, **(task_kwargs or {})}, dict(environment_kwargs or {})
        self._dm = import_suite().load(domain, task, task_kwargs, environment_kwargs, visualize_reward)
        self._limit(f"{PREFIX}{domain}-{task}", max_episode_steps)
        self._check_camera()
        self._state = SimulatorState(self._dm)
        self.has_whole_state = self._state.is_whole
        self._keys = sorted(self._dm.observation_spec())
        self.is_watched = True  # False: nobody looks at what `step` returns, so that no picture is drawn
        self.observation_space, self.action_space = self._make_observation_space(), _action_space(self._dm)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1.0 / self._dm.control_timestep())}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `seed` begins a new random stream."""
        super().reset(seed=seed)
        self._dm.task.random.seed(int(self.np_random.integers(2**32)))
        return self._observe(self._dm.reset().observation), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action for the control time step of the task."""
        outcome = self._dm.step(action)
        is_over = bool(outcome.last())
        terminated = is_over and outcome.discount == 0.0
        obs = self._observe(outcome.observation) if self.is_watched or is_over else None
        return obs, float(outcome.reward), terminated, is_over and not terminated, {}

    def get_state(self) -> dict[str, Any]:
        """Return the simulator, what the episode changed in its model, and the task."""
        return self._state.get()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state` of any copy of this task."""
        self._state.set(state)

    def render(self) -> Array | None:
        """Return a picture [H, W, 3], or None without a render mode."""
        return None if self.render_mode is None else self._draw(self._render_size)

    def close(self) -> None:
        """Free the simulator and what it draws with."""
        self._dm.physics.free()

    def _limit(self, name: str, max_episode_steps: int | None) -> None:
        if max_episode_steps is not None:
            check_at_least("max_episode_steps", max_episode_steps, 1)
            self._dm._step_limit = max_episode_steps
        limit = self._dm._step_limit
        self.max_episode_steps = None if math.isinf(limit) else math.ceil(limit)
        self.spec = EnvSpec(name, max_episode_steps=self.max_episode_steps)

    def _check_camera(self) -> None:
        model = self._dm.physics.model
        names = [model.id2name(index, "camera") for index in range(model.ncam)]
        check_choice("camera_id", self._camera_id, (-1, *range(model.ncam), *filter(None, names)))

    def _make_observation_space(self) -> spaces.Space[Any]:
        widths = {key: math.prod(leaf.shape) for key, leaf in self._dm.observation_spec().items()}
        if self._observations == "dict":
            return spaces.Dict({key: _numbers(widths[key]) for key in self._keys})
        if self._observations == "vector":
            return _numbers(sum(widths.values()))
        pixels = spaces.Box(0, 255, (*self._size, 3), np.uint8)
        if self._observations == "pixels":
            return pixels
        return spaces.Dict({"pixels": pixels, "state": _numbers(sum(widths.values()))})

    def _observe(self, state: Mapping[str, Any]) -> Any:
        if self._observations == "vector":
            return self._vector(state)
        if self._observations == "dict":
            return {key: np.ravel(state[key]).astype(np.float32) for key in self._keys}
        pixels = self._draw(self._size)
        return pixels if self._observations == "pixels" else {"pixels": pixels, "state": self._vector(state)}

    def _vector(self, state: Mapping[str, Any]) -> Array:
        return np.concatenate([np.ravel(state[key]) for key in self._keys], dtype=np.float32, casting="same_kind")

    def _draw(self, size: tuple[int, int]) -> Array:
        picture: Array = self._dm.physics.render(*size, camera_id=self._camera_id)
        return picture


def _numbers(width: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (width,), np.float32)


def _action_space(dm: Any) -> spaces.Box:
    action = dm.action_spec()
    low = np.where(action.minimum <= -UNBOUNDED, -np.inf, action.minimum).astype(np.float32)
    high = np.where(action.maximum >= UNBOUNDED, np.inf, action.maximum).astype(np.float32)
    return spaces.Box(np.broadcast_to(low, action.shape), np.broadcast_to(high, action.shape), dtype=np.float32)
