"""Processes that train one run together, each with environments and data of its own: `torchrun`'s ranks.

What must be the same in all of them goes through `Ranks`: gradients, statistics of data, and decisions. A process alone
is the only rank there is, and nothing costs anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from rl_lab.core.shards import Block, Shards


class Ranks:
    """This process among those of its run; the base class is one that is alone.

    Attributes:
        rank: Its number; the first one, 0, writes for all.
        size: How many there are.
    """

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Return whether this one writes for all."""
        return self.rank == 0

    @property
    def folder(self) -> str:
        """Return the name of the directory for what is this one's alone; the first one needs none."""
        return "" if self.is_first else f"rank_{self.rank}"

    def mean_(self, tensor: Tensor) -> Tensor:
        """Make a tensor the mean of all ranks' and return it."""
        return tensor

    def means(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the means of all ranks' tensors, at the cost of one."""
        return tensors

    def cat(self, tensor: Tensor) -> Tensor:
        """Return all ranks' tensors [n, ...] after each other, [size n, ...]."""
        return tensor

    def share_(self, tensors: list[Tensor]) -> None:
        """Make tensors those of the first one."""

    def shard(self, whole: Block, blocks: Iterable[Block]) -> Shards | None:
        """Leave each rank a part of a module's weights, block by block; None: this one is alone and keeps them all."""
        return None

    def numbers(self, *own: int) -> list[tuple[int, ...]]:
        """Return the numbers that each rank says, in their order; all wait for all."""
        return [own]

    def gather(self, value: Any) -> list[Any]:
        """Return what each rank says, in their order: whatever JSON can hold, and slower than numbers."""
        return [value]

    def first(self, value: Any) -> Any:
        """Return what the first one says."""
        return self.gather(value)[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """Return the same: a copy of a network belongs to the same process."""
        return self


ALONE = Ranks()
