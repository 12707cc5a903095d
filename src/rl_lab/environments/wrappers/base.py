"""Wrappers around episodes, actions in time and rewards, for the `wrappers:` list of a config. Knows no torch.

Each gives the state of its running episode as plain values (`exact.state`) and draws randomness only from the stream of
the environment itself, so that an episode comes back exactly both by state and by replay.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_lab.environments.exact.adapter import LayerState, plain, unplain
from rl_lab.environments.hosting.foreign import config_error

Outcome = tuple[Any, Any, bool, bool, dict[str, Any]]


class LabWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose running episode has a state; empty unless a subclass says otherwise."""

    def get_state(self) -> LayerState:
        """Return plain values."""
        return {}

    def set_state(self, state: LayerState) -> None:
        """Go on from `state`."""


def unknown_choice(kind: str, name: object, choices: Iterable[object]) -> Exception:
    """Return the ConfigError for a name that is not among the choices."""
    from rl_lab.core import unknown_name  # late: it brings torch, and only a wrong config needs it

    return config_error(unknown_name(kind, name, choices))


def describe_space(space: spaces.Space[Any]) -> str:
    """Return a space on one line; that of gymnasium has all bounds."""
    if isinstance(space, spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {describe_space(part)}" for key, part in space.spaces.items()) + ")"
    if isinstance(space, spaces.Box):
        return f"Box({', '.join(map(str, space.shape))}) of {space.dtype}"
    return " ".join(str(space).split())


def check_number(name: str, value: Any, *, low: float, high: float = np.inf, is_count: bool = False) -> Any:
    """Return `value`, which must be a number (or a whole one) within the bounds."""
    kind = int if is_count else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        what = "a whole number" if is_count else "a number"
        bounds = f"of {low} or more" if high == np.inf else f"from {low} to {high}"
        raise config_error(f"environment.wrappers.{name} must be {what} {bounds}, not {value!r}")
    return value


def copied(action: Any) -> Any:
    """Return an action that an environment may write into, as some do."""
    if isinstance(action, np.ndarray):
        return action.copy()
    return copy.deepcopy(action) if isinstance(action, dict | tuple) else action


class TimeLimit(LabWrapper):
    """Truncates episodes; a shorter limit inside or outside of it keeps its right.

    Args:
        max_episode_steps: Steps of this layer after which an episode is truncated.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, max_episode_steps: int) -> None:
        self.max_episode_steps = check_number("time_limit", max_episode_steps, low=1, is_count=True)
        super().__init__(env)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to count."""
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Outcome:
        """Truncate at the limit."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return obs, reward, terminated, truncated or (self._steps >= self.max_episode_steps and not terminated), info

    def get_state(self) -> LayerState:
        """Return the count."""
        return {"steps": self._steps}

    def set_state(self, state: LayerState) -> None:
        """Go on counting."""
        self._steps = state["steps"]


@runtime_checkable
class Watched(Protocol):
    """An environment whose observations take long: while `is_watched` is False it may give None, but at an end."""

    is_watched: bool


class ActionRepeat(LabWrapper):
    """Takes every action several times and sums the rewards; the end of the episode ends the repetition.

    Args:
        repeat: How many steps of the layer below are one step.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, repeat: int) -> None:
        self.frames_per_step: int = check_number("action_repeat", repeat, low=1, is_count=True)
        super().__init__(env)
        self._watched = env if isinstance(env, Watched) else None

    def step(self, action: Any) -> Outcome:
        """Repeat the action; observation, flags and info are those of the last repetition."""
        total = 0.0
        for left in reversed(range(self.frames_per_step)):
            if self._watched is not None:
                self._watched.is_watched = left == 0
            obs, reward, terminated, truncated, info = self.env.step(copied(action))
            total += float(reward)
            if terminated or truncated:
                break
        if self._watched is not None:
            self._watched.is_watched = True
        return obs, total, terminated, truncated, info


class StickyActions(LabWrapper):
    """Now and then takes the previous action again instead of the given one (Machado et al. 2018).

    Args:
        probability: How often, per step; 0.25 is customary.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, probability: float = 0.25) -> None:
        self._probability = check_number("sticky_actions", probability, low=0, high=1)
        super().__init__(env)
        self._taken: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Forget the previous action: the first one of an episode is always taken."""
        self._taken = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Outcome:
        """Choose between the given and the previous action."""
        if self.unwrapped.np_random.random() >= self._probability or self._taken is None:
            self._taken = copied(action)
        return self.env.step(copied(self._taken))

    def get_state(self) -> LayerState:
        """Return the previous action."""
        return {"taken": plain(self._taken)}

    def set_state(self, state: LayerState) -> None:
        """Remember the previous action."""
        self._taken = unplain(state["taken"])


class EpisodeStatistics(LabWrapper):
    """Adds `episode.return`, `episode.length` and `episode.max_reward` of this layer to the info of its last step."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._return, self._length, self._highest = 0.0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to sum."""
        self._return, self._length, self._highest = 0.0, 0, 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Outcome:
        """Sum, and report at the end."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._highest = float(reward) if self._length == 0 else max(self._highest, float(reward))
        self._return, self._length = self._return + float(reward), self._length + 1
        if terminated or truncated:
            found = {"return": self._return, "length": float(self._length), "max_reward": self._highest}
            info = {**info, **{f"episode.{name}": value for name, value in found.items()}}
        return obs, reward, terminated, truncated, info

    def get_state(self) -> LayerState:
        """Return the sums and the highest reward."""
        return {"return": self._return, "length": self._length, "highest": self._highest}

    def set_state(self, state: LayerState) -> None:
        """Go on summing."""
        self._return, self._length, self._highest = state["return"], state["length"], state["highest"]


class ClipReward(LabWrapper):
    """Keeps rewards small.

    Args:
        bounds: `sign` (-1, 0 or 1, as in the DQN papers), a number b for [-b, b], or [low, high].
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, bounds: str | float | Sequence[float] = "sign") -> None:
        self._bounds = None if bounds == "sign" else check_bounds("clip_reward", bounds, others="'sign', ")
        super().__init__(env)

    def step(self, action: Any) -> Outcome:
        """Clip the reward."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        clipped = np.sign(float(reward)) if self._bounds is None else np.clip(float(reward), *self._bounds)
        return obs, float(clipped), terminated, truncated, info


def check_bounds(name: str, bounds: Any, *, others: str = "") -> tuple[float, float]:
    """Return (low, high) of a number b or of a pair."""
    pair = [-bounds, bounds] if isinstance(bounds, int | float) and not isinstance(bounds, bool) else bounds
    is_pair = isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(end, int | float) for end in pair)
    if not is_pair or not pair[0] < pair[1]:
        raise config_error(f"environment.wrappers.{name} must be {others}a number or [low, high], not {bounds!r}")
    return float(pair[0]), float(pair[1])


class LifeLoss(LabWrapper):
    """Atari: losing a life ends the episode; only a lost game really begins anew."""

    remembers_episodes = True  # the next episode goes on where a life was lost

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        kind = type(env.unwrapped)
        if not any(base.__module__.startswith("ale_py.") for base in kind.__mro__):
            raise config_error(f"environment.wrappers.life_loss is for Atari (ALE/...), not for a {kind.__name__}")
        super().__init__(env)
        self._ale = env.unwrapped.ale  # type: ignore[attr-defined]  # of ale_py
        self._nothing: Any = 0 if isinstance(env.action_space, spaces.Discrete) else np.zeros(3, np.float32)
        self._lives, self._is_over = 0, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Go on with the next life, by one step of doing nothing; or begin a new game."""
        is_new_game = self._is_over or seed is not None or self._ale.lives() == self._lives
        if not is_new_game:
            obs, _, terminated, truncated, info = self.env.step(self._nothing)
            is_new_game = terminated or truncated
        if is_new_game:
            obs, info = self.env.reset(seed=seed, options=options)
        self._lives, self._is_over = self._ale.lives(), False
        return obs, info

    def step(self, action: Any) -> Outcome:
        """End the episode when a life is lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._is_over = terminated or truncated
        lives = self._ale.lives()
        is_lost = 0 < lives < self._lives  # the last life ends with the game, which some games say a few frames later
        if not is_lost:
            self._lives = lives
        return obs, reward, terminated or is_lost, truncated and not is_lost, info

    def get_state(self) -> LayerState:
        """Return the lives at the beginning of the episode and whether the game is over."""
        return {"lives": self._lives, "is_over": self._is_over}

    def set_state(self, state: LayerState) -> None:
        """Go on with this life."""
        self._lives, self._is_over = state["lives"], state["is_over"]
