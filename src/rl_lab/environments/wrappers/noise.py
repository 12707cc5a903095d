"""Wrappers that make a task harder: noise on observations, actions and rewards, and late observations."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.environments.exact.adapter import LayerState, plain, unplain
from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.wrappers.actions import BoxActionWrapper
from rl_lab.environments.wrappers.base import LabWrapper, Outcome, check_number, describe_space
from rl_lab.environments.wrappers.entries import EntryWrapper


class ObservationNoise(EntryWrapper):
    """Adds normal noise to the floats that are observed.

    Args:
        std: Its standard deviation, one number or one per entry of the array.
        keys: Which entries of a dict observation; null: all arrays of floats.
    """

    name, needs = "observation_noise", "an array of floats"

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        std: float | Sequence[float],
        keys: Sequence[str] | None = None,
    ) -> None:
        self._std = _deviation(self.name, std)
        super().__init__(env, keys)

    def fits(self, space: spaces.Box) -> bool:
        """Return whether it is an array of floats."""
        return np.issubdtype(space.dtype, np.floating)

    def change_space(self, key: str, space: spaces.Box) -> spaces.Box:
        """Return a space without bounds, which noise does not keep."""
        _check_shape(self.name, self._std, space)
        return spaces.Box(-np.inf, np.inf, space.shape, space.dtype)

    def change(self, key: str, value: NDArray[Any], *, is_first: bool) -> NDArray[Any]:
        """Return the disturbed array."""
        noise = self.unwrapped.np_random.normal(size=value.shape)
        return (value + self._std * noise).astype(value.dtype)


class ActionNoise(BoxActionWrapper):
    """Adds normal noise to actions, which stay within their bounds.

    Args:
        std: Its standard deviation, one number or one per entry of the action.
    """

    name = "action_noise"

    def __init__(self, env: gymnasium.Env[Any, Any], *, std: float | Sequence[float]) -> None:
        self._std = _deviation(self.name, std)
        super().__init__(env)
        _check_shape(self.name, self._std, self._inner)

    def change(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the disturbed action."""
        noise = self.unwrapped.np_random.normal(size=action.shape)
        return np.clip(action + self._std * noise, self._inner.low, self._inner.high)


class RewardNoise(LabWrapper):
    """Adds normal noise to the reward.

    Args:
        std: Its standard deviation.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, std: float) -> None:
        self._std = check_number("reward_noise", std, low=0)
        super().__init__(env)

    def step(self, action: Any) -> Outcome:
        """Disturb the reward."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) + self._std * self.unwrapped.np_random.normal(), terminated, truncated, info


class ObservationDelay(LabWrapper):
    """Shows what was observed some steps ago; the first observation of an episode until there is one that old.

    Args:
        steps: How many steps the policy looks back.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, steps: int) -> None:
        self._length = check_number("observation_delay", steps, low=0, is_count=True) + 1
        super().__init__(env)
        self._seen: deque[Any] = deque(maxlen=self._length)  # oldest first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Show the first observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._seen.extend([copy.deepcopy(obs)] * self._length)
        return obs, info

    def step(self, action: Any) -> Outcome:
        """Show the observation of `steps` steps ago."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._seen.append(copy.deepcopy(obs))
        return copy.deepcopy(self._seen[0]), reward, terminated, truncated, info

    def get_state(self) -> LayerState:
        """Return what waits to be shown."""
        return {"seen": [plain(obs) for obs in self._seen]}

    def set_state(self, state: LayerState) -> None:
        """Let it wait again."""
        self._seen.clear()
        self._seen.extend(unplain(obs) for obs in state["seen"])


def _deviation(name: str, std: Any) -> Any:
    """Return the standard deviation as a number or an array."""
    if not isinstance(std, Sequence) or isinstance(std, str):
        return check_number(name, std, low=0)
    return np.array([check_number(name, entry, low=0) for entry in std])


def _check_shape(name: str, std: Any, space: spaces.Box) -> None:
    if isinstance(std, np.ndarray) and std.shape != space.shape:
        raise config_error(f"environment.wrappers.{name} has {len(std)} values of std for {describe_space(space)}")
