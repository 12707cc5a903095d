"""Actions on their way into a gymnasium environment. Knows no torch, so that worker processes start light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_lab.environments.gymnasium_codec import Array, UnsupportedSpace

Rows = list[Any]  # one action per environment, as the environment takes it


@dataclass(frozen=True)
class DiscreteAction:
    """One of `n` choices; the environment is given a NumPy int64, which it checks faster than a Python int."""

    n: int
    start: int
    shape: tuple[int, ...] = ()
    dtype: type[np.generic] = np.int64  # of what the agent gives

    def rows(self, actions: Array) -> tuple[Rows, Rows]:
        """Return what each environment is given, and the same for its log."""
        chosen = list(actions + self.start if self.start else actions)
        return chosen, chosen

    def replay(self, log: Array) -> Rows:
        """Return the actions of a saved log, as the environment takes them."""
        return list(log)


@dataclass(frozen=True)
class MultiDiscreteAction:
    """Several independent choices; the environment is given an int64 vector."""

    nvec: tuple[int, ...]
    start: Array
    dtype: type[np.generic] = np.int64

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one action."""
        return (len(self.nvec),)

    def rows(self, actions: Array) -> tuple[Rows, Rows]:
        """Return what each environment is given, and a copy for its log (it may write into its action)."""
        sent = actions + self.start
        return list(sent), list(sent.copy())

    def replay(self, log: Array) -> Rows:
        """Return the actions of a saved log, as the environment takes them."""
        return list(log.copy())


@dataclass(frozen=True)
class BoxAction:
    """Numbers, clipped to the bounds of the space.

    Where finite bounds differ between entries the agent acts in [-1, 1] and each entry is stretched to its own bounds.
    """

    shape: tuple[int, ...]
    low: Array
    high: Array
    is_stretched: bool
    dtype: type[np.generic] = np.float32

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the bounds an agent acts in; infinite where any entry has none."""
        return (-1.0, 1.0) if self.is_stretched else (float(self.low.min()), float(self.high.max()))

    def rows(self, actions: Array) -> tuple[Rows, Rows]:
        """Return what each environment is given, and a copy for its log (it may write into its action)."""
        if self.is_stretched:
            actions = self.low + (actions + np.float32(1.0)) * np.float32(0.5) * (self.high - self.low)
        sent = np.minimum(np.maximum(actions, self.low), self.high)
        return list(sent), list(sent.copy())

    def replay(self, log: Array) -> Rows:
        """Return the actions of a saved log, as the environment takes them."""
        return list(log.copy())


ActionCodec = DiscreteAction | MultiDiscreteAction | BoxAction


def action_codec(space: spaces.Space[Any]) -> ActionCodec:
    """Return the codec of an action space; raises UnsupportedSpace."""
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return MultiDiscreteAction(tuple(int(n) for n in space.nvec), space.start)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return BoxAction(space.shape, space.low, space.high, _has_own_bounds(space))
    raise UnsupportedSpace(f"{space}; an action is a Discrete, a flat MultiDiscrete or a Box of floats")


def _has_own_bounds(space: spaces.Box) -> bool:
    is_bounded = bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
    return is_bounded and bool((space.low != space.low.flat[0]).any() or (space.high != space.high.flat[0]).any())
