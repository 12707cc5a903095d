"""Numbers of a dataset in [-1, 1]: each dimension by its own lowest and highest value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.observation import is_image, read_leaf
from rl_lab.core import ACTION_MASK, Box, Observation, Space, flat_dim, leaves_of

LEAST_RANGE = 1e-4  # a dimension that moves less is taken to stand still


class UnitRange(nn.Module):
    """Maps [..., dim] to [-1, 1] and back; a dimension that stands still becomes 0. Before `fit` the identity.

    Args:
        dim: Numbers.
    """

    middle: Tensor
    scale: Tensor
    is_fitted: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.register_buffer("is_fitted", torch.zeros((), dtype=torch.bool))

    def fit(self, low: Tensor, high: Tensor) -> None:
        """Take the limits of the data, each of any shape with `dim` numbers."""
        half = 0.5 * (high.float() - low.float()).flatten()
        self.middle.copy_(0.5 * (high.float() + low.float()).flatten())
        self.scale.copy_(torch.where(half < 0.5 * LEAST_RANGE, torch.ones_like(half), half))
        self.is_fitted.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers in [-1, 1], or outside where the data was not."""
        return (x - self.middle) / self.scale

    def inverse(self, x: Tensor) -> Tensor:
        """Return the numbers behind those in [-1, 1]."""
        return x * self.scale + self.middle


class ObservationRange(nn.Module):
    """Reads an observation as a vector, its numbers by their limits and choices as one-hots, and its pictures.

    Args:
        space: Of the observations.
    """

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._space = space
        leaves = {name: leaf for name, leaf in leaves_of(space).items() if name != ACTION_MASK}
        self.pictures = {name: leaf.shape for name, leaf in leaves.items() if isinstance(leaf, Box) and is_image(leaf)}
        self._leaves = {name: leaf for name, leaf in leaves.items() if name not in self.pictures}
        self.vector_dim = sum(flat_dim(leaf) for leaf in self._leaves.values())
        self._numbers = [name for name, leaf in self._leaves.items() if isinstance(leaf, Box)]
        self.ranges = nn.ModuleList(UnitRange(flat_dim(self._leaves[name])) for name in self._numbers)

    def fit(self, low: Any, high: Any) -> None:
        """Take the limits of the data, trees like observations."""
        lows, highs = self._named(low), self._named(high)
        for name, unit in zip(self._numbers, self.ranges, strict=True):
            unit.fit(lows[name], highs[name])  # type: ignore[operator]

    def forward(self, obs: Observation) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the vector [..., vector_dim] and the pictures by name."""
        parts = self._named(obs)
        read = {name: read_leaf(leaf, parts[name]) for name, leaf in self._leaves.items()}
        read |= {name: unit(read[name]) for name, unit in zip(self._numbers, self.ranges, strict=True)}
        pictures = {name: parts[name] for name in self.pictures}
        if read:
            return torch.cat(list(read.values()), -1), pictures
        some = next(iter(pictures.values()))
        return some.new_zeros(*some.shape[:-3], 0, dtype=torch.float32), pictures

    def _named(self, tree: Any) -> dict[str, Any]:
        return tree if isinstance(self._space, Mapping) else {"": tree}
