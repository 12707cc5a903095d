"""Weights of which each rank of a run holds a part, with its gradient and the state of its optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from torch import Tensor, nn


class Block(NamedTuple):
    """A part of a network whose weights are brought together while it computes.

    Attributes:
        module: The part.
        methods: By which it computes, beside `forward`.
    """

    module: nn.Module
    methods: Sequence[str] = ()


class Shards(Protocol):
    """The part of a module's weights that this rank holds.

    Attributes:
        parameters: Of what learns, this rank's part of each: tensors of its own, for an optimiser.
    """

    parameters: list[nn.Parameter]

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        """Return this rank's part of the gradients of the mean of all ranks' losses."""

    def joined(self, norm: Tensor) -> Tensor:
        """Return the length of what all ranks hold, of the length of this one's part."""

    def whole(self) -> AbstractContextManager[None]:
        """Return a context that all ranks enter together: all hold all weights, act and put out whole state dicts."""
