"""A tree of sums over many numbers: draws in proportion to them, and changes some of them, without a loop over rows.

Every node has 128 children. A parent is always recomputed from its children, by additions in a fixed order: the tree is
a function of its leaves alone, to the bit, whatever the order of the changes that led there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.buffers.storage.row_store import zeros

FAN = 128
JUST_BELOW = 1.0 - 2.0**-52


class SumTree:
    """`num_leaves` numbers >= 0 (float64), all zero at first."""

    def __init__(self, num_leaves: int, device: torch.device) -> None:
        self._levels: list[Tensor] = []  # the leaves first, each level as blocks [B, 128], the last a single block
        count = num_leaves
        while not self._levels or len(self._levels[-1]) > 1:
            count = -(-count // FAN)
            self._levels.append(zeros((count, FAN), torch.float64, device))
        self.leaves = self._levels[0].view(-1)[:num_leaves]  # whoever writes to them calls `update`

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return sum(level.numel() * level.element_size() for level in self._levels)

    @property
    def total(self) -> Tensor:
        """Return the sum of all leaves, a scalar."""
        return _sums(self._levels[-1])[0]

    def put(self, index: Tensor, values: Tensor) -> None:
        """Set the leaves at `index` [B] to `values` [B]; of several values for one leaf the largest counts."""
        self.leaves.index_fill_(0, index, 0.0).scatter_reduce_(0, index, values, "amax")
        for children, parents in zip(self._levels[:-1], self._levels[1:], strict=True):
            index = index.div(FAN, rounding_mode="floor")
            parents.view(-1).index_copy_(0, index, _sums(children.index_select(0, index)))

    def update(self, begin: int, end: int) -> None:
        """Recompute the sums above the leaves from `begin` up to `end`."""
        for children, parents in zip(self._levels[:-1], self._levels[1:], strict=True):
            begin, end = begin // FAN, -(-end // FAN)
            parents.view(-1)[begin:end] = _sums(children[begin:end])

    def find(self, targets: Tensor) -> Tensor:
        """Return for each target in [0, total) [B] the leaf in whose share of the running sum it lies; never a zero."""
        node = torch.zeros_like(targets, dtype=torch.int64)
        rest = targets[:, None]
        for level in reversed(self._levels):
            block = level.index_select(0, node)
            sums = block.cumsum(1)
            rest = torch.minimum(rest, sums[:, -1:] * JUST_BELOW)  # rounding must not lead behind the last child
            child = torch.searchsorted(sums, rest, right=True)
            node = node * FAN + child.squeeze(1)
            if level is not self._levels[0]:
                rest = (rest - (sums - block).gather(1, child)).clamp_(min=0.0)  # nor before the first
        return node


def _sums(blocks: Tensor) -> Tensor:
    """Sum blocks [B, 128] by halves: the same bits for a block alone and among others."""
    width = FAN
    while width > 1:
        width //= 2
        blocks = blocks[:, :width] + blocks[:, width:]
    return blocks[:, 0]
