"""Batches that are taken in parts, whose gradients are added up one after another: the same update for less memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rl_lab.core import Batch, Tree, Workflow, WorkflowContext, tree_leaves, tree_map

T = TypeVar("T")


class PartedUpdate(Generic[T]):
    """A static function that learns from a batch, in as many parts as it sees fit when it is made."""

    def __init__(self, context: WorkflowContext, learn: Callable[[Batch], T]) -> None:
        self._static, self._learn, self.num_rows = context.static, learn, 0
        self.renew()

    def __call__(self, batch: Batch) -> T:
        """Learn from a batch."""
        self.num_rows = num_rows(batch)
        return self._function(batch)

    def renew(self) -> None:
        """Make it anew: what was recorded is of larger parts."""
        self._function = self._static(self._learn)


class Accumulating(Workflow):
    """A workflow that can add up the gradients of parts of a batch.

    `initialize` sets `_update`, and the gradient comes from `Learner.descend_over` with `parts_of` a batch.
    """

    accumulates = True
    accumulation: int  # parts of a batch
    _update: PartedUpdate[Any]

    def split_further(self) -> int | None:
        """Add up the gradients of twice as many parts."""
        updates = self._parted_updates()
        if 2 * self.accumulation > max(update.num_rows for update in updates):
            return None
        self.accumulation *= 2
        for update in updates:
            update.renew()
        return self.accumulation

    def _parted_updates(self) -> tuple[PartedUpdate[Any], ...]:
        """Return all updates that batches are taken in parts by."""
        return (self._update,)

    def get_state(self) -> dict[str, Any]:
        """Return in how many parts a batch is taken."""
        return {"accumulation": self.accumulation}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.accumulation = max(self.accumulation, state.get("accumulation", 1))  # early checkpoints do not say


def num_rows(batch: Tree) -> int:
    """Return the length of the first dimension of a batch."""
    _, first = next(iter(tree_leaves(batch)))
    return len(first)


def parts_of(batch: Any, num_parts: int) -> list[Any]:
    """Return a batch in parts of about the same size, the longer ones first; of few rows, one part each."""
    if num_parts == 1:
        return [batch]
    num_parts = min(num_parts, num_rows(batch))
    size, more = divmod(num_rows(batch), num_parts)
    ends = [0]
    for part in range(num_parts):
        ends.append(ends[-1] + size + (part < more))
    slices = [slice(start, end) for start, end in pairwise(ends)]
    return [tree_map(lambda leaf, rows=rows: leaf[rows], batch) for rows in slices]


def joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return what was found in parts, in the order of the rows, which lie along `dim`."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
