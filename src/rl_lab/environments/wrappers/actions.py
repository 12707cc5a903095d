"""Wrappers that declare other bounds of continuous actions than the environment's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.wrappers.base import LabWrapper, Outcome, check_bounds, describe_space


class BoxActionWrapper(LabWrapper):
    """Changes actions that are arrays of numbers before the layer below takes them."""

    name: str  # in the config

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        space = env.action_space
        if not isinstance(space, spaces.Box):
            raise config_error(
                f"environment.wrappers.{self.name} needs actions that are a Box, not {describe_space(space)}"
            )
        super().__init__(env)
        self._inner = space
        self._is_whole = not np.issubdtype(space.dtype, np.floating)

    @abstractmethod
    def change(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return what the layer below is given."""

    def step(self, action: Any) -> Outcome:
        """Change the action and step."""
        changed = self.change(np.asarray(action))
        return self.env.step((np.rint(changed) if self._is_whole else changed).astype(self._inner.dtype))


class ClipActions(BoxActionWrapper):
    """Clips actions.

    Args:
        bounds: A number b for [-b, b], or [low, high], within the environment's own bounds; null: those.
    """

    name = "clip_actions"

    def __init__(self, env: gymnasium.Env[Any, Any], *, bounds: float | Sequence[float] | None = None) -> None:
        super().__init__(env)
        low, high = (-np.inf, np.inf) if bounds is None else check_bounds(self.name, bounds)
        self._low, self._high = np.maximum(low, self._inner.low), np.minimum(high, self._inner.high)
        if not (self._low < self._high).all():
            inner = f"[{self._inner.low.min()}, {self._inner.high.max()}]"
            raise config_error(f"environment.wrappers.clip_actions {bounds!r} leaves nothing of {inner}")
        dtype: Any = self._inner.dtype
        self.action_space = spaces.Box(self._low.astype(dtype), self._high.astype(dtype), dtype=dtype)

    def change(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the clipped action."""
        return np.clip(action, self._low, self._high)


class RescaleActions(BoxActionWrapper):
    """Stretches actions from declared bounds to those of the environment; what is outside is clipped.

    Args:
        bounds: What the policy gives: a number b for [-b, b], or [low, high].
    """

    name = "rescale_actions"

    def __init__(self, env: gymnasium.Env[Any, Any], *, bounds: float | Sequence[float] = 1.0) -> None:
        super().__init__(env)
        self._low, self._high = check_bounds(self.name, bounds)
        if not self._inner.is_bounded():
            raise config_error("environment.wrappers.rescale_actions needs bounded actions, these have no bounds")
        self.action_space = spaces.Box(self._low, self._high, self._inner.shape, np.float32)

    def change(self, action: NDArray[Any]) -> NDArray[Any]:
        """Return the stretched action."""
        share = np.clip((action.astype(np.float64) - self._low) / (self._high - self._low), 0.0, 1.0)
        return (1.0 - share) * self._inner.low + share * self._inner.high
