"""Rewards of goals, computed from what was achieved and what was desired: what relabelled steps are given."""

from __future__ import annotations

from torch import Tensor


class SparseDistance:
    """One reward within a distance of the goal, another elsewhere (Plappert et al., 2018: 0 and -1).

    Args:
        threshold: Largest distance (Euclidean) at which the goal counts as reached.
        reached: Reward there.
        missed: Reward elsewhere.
    """

    def __init__(self, threshold: float, reached: float = 0.0, missed: float = -1.0) -> None:
        self._threshold, self._reached, self._missed = threshold, reached, missed

    def __call__(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """Return rewards [B] of achieved and desired goals [B, D]."""
        is_reached = distance(achieved, desired) <= self._threshold
        return is_reached * (self._reached - self._missed) + self._missed


class DenseDistance:
    """Minus the distance to the goal.

    Args:
        scale: What the distance is multiplied with.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def __call__(self, achieved: Tensor, desired: Tensor) -> Tensor:
        """Return rewards [B] of achieved and desired goals [B, D]."""
        return -self._scale * distance(achieved, desired)


def distance(achieved: Tensor, desired: Tensor) -> Tensor:
    """Return the Euclidean distance [B] between goals [B, D]."""
    return (achieved - desired).norm(dim=-1)
