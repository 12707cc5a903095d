"""What hooks and collectors report: detached tensors or numbers, synchronised once per log interval; pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Mean(NamedTuple):
    """A mean that is still a sum and a weight, so that intervals can be joined without bias."""

    total: Tensor | float
    weight: Tensor | float


class Picture(NamedTuple):
    """An image, or a film of several, for the run's media folder."""

    pixels: Tensor  # [H, W, 3] or [T, H, W, 3] uint8


Numbers = Mapping[str, Tensor | float | Mean]
Metrics = Mapping[str, Tensor | float | Mean | Picture]
