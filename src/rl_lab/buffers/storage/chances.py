"""From priorities to the chance of every row to be drawn: in proportion, or by rank (Schaul et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rl_lab.buffers.storage.row_store import zeros
from rl_lab.buffers.storage.sum_tree import SumTree
from rl_lab.core import CheckpointError, ConfigError, State, unknown_name

KINDS = ("proportional", "rank")
RANKS_LAST = 16  # ranks are sorted anew once a sixteenth of the rows has changed: a sort of a million takes 0.1 s
HUGE = 1e30  # instead of infinity, which would leave no chance to any other row
NOBODY = -1.0  # the priority of a row that cannot be drawn


@dataclass(frozen=True)
class Priority:
    """How much a step's priority says about how often it is drawn.

    Args:
        kind: proportional: in proportion to `(priority + epsilon) ** alpha`; rank: to `rank ** -alpha`, largest first.
        alpha: 0 draws uniformly, 1 in full proportion.
        beta: How much of the bias the importance weights take back, from 0 to 1.
        beta_end: What beta grows to; null: it stays.
        beta_updates: Batches until it has grown; required with beta_end.
        epsilon: Added to priorities, so that none is zero.
    """

    kind: Literal["proportional", "rank"] = "proportional"
    alpha: float = 0.6
    beta: float = 0.4
    beta_end: float | None = None
    beta_updates: int | None = None
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(unknown_name("priority.kind", self.kind, KINDS))
        if self.alpha < 0.0 or self.epsilon <= 0.0:
            raise ConfigError(
                f"priority.alpha must be 0 or more and epsilon above 0, not {self.alpha} and {self.epsilon}"
            )
        if (self.beta_end is None) != (self.beta_updates is None) or (self.beta_updates or 1) < 1:
            raise ConfigError(
                "priority.beta_end and priority.beta_updates (1 or more) are given together or not at all"
            )

    def beta_after(self, batches: int) -> float:
        """Return beta for the next batch."""
        if self.beta_end is None or self.beta_updates is None:
            return self.beta
        return self.beta + (self.beta_end - self.beta) * min(1.0, batches / self.beta_updates)


class Chances:
    """The leaves of a sum tree: what each row's priority weighs.

    By rank, a row's place among the others is found in the priorities as they were last sorted. They are sorted anew
    before a draw once a sixteenth of them has changed, so small buffers, and all right after that, have exact ranks.
    """

    def __init__(self, priority: Priority, num_rows: int, device: torch.device) -> None:
        self._priority = priority
        self._tree = SumTree(num_rows, device)
        self._stale: list[tuple[int, int]] = []  # ranges of leaves whose sums are not recomputed yet
        self._largest = torch.ones((), dtype=torch.float64, device=device)  # priority there ever was
        self.num_changes = 0  # rows that were stored or given a priority since ranks were sorted
        by_rank = priority.kind == "rank"
        self._values = torch.full((num_rows if by_rank else 0,), NOBODY, device=device)
        self._sorted = zeros((num_rows if by_rank else 0,), torch.float32, device)  # minus priorities, ascending
        self._num_sorted = 0

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return self._tree.num_bytes + 2 * 4 * len(self._values)

    def admit(self, begin: int, end: int) -> None:
        """Give new rows the largest priority there ever was."""
        if self._priority.kind == "rank":
            self._values[begin:end] = self._largest
            self._tree.leaves[begin:end] = 1.0
        else:
            self._tree.leaves[begin:end] = self._largest.pow(self._priority.alpha)
        self._note(begin, end)

    def drop(self, begin: int, end: int) -> None:
        """Let rows never be drawn."""
        self._tree.leaves[begin:end] = 0.0
        if self._priority.kind == "rank":
            self._values[begin:end] = NOBODY
        self._note(begin, end)

    def replace(self, gone: Tensor, new: Tensor) -> None:
        """Let the rows `gone` [G] never be drawn; those in `new` [R] get the largest priority there ever was."""
        by_rank = self._priority.kind == "rank"
        weight = torch.ones_like(self._largest) if by_rank else self._largest.pow(self._priority.alpha)
        if by_rank:
            self._values.index_fill_(0, gone, NOBODY)
            self._values[new] = self._largest.float()
        self._tree.put(gone, torch.zeros_like(gone, dtype=torch.float64))
        self._tree.put(new, weight.expand(len(new)))
        self.num_changes += len(new)

    def put(self, index: Tensor, priorities: Tensor, is_gone: Tensor) -> None:
        """Give rows [B] new priorities, except where they are gone; of several for one row the largest counts."""
        values = priorities.detach().double().nan_to_num(0.0, HUGE, HUGE).abs() + self._priority.epsilon
        self._largest = torch.maximum(self._largest, values.masked_fill(is_gone, 0.0).max())
        if self._priority.kind == "rank":
            weights = self._rank(values.float()).pow(-self._priority.alpha)
            kept = torch.where(is_gone, self._values.index_select(0, index), values.float())
            self._values.index_fill_(0, index, NOBODY).scatter_reduce_(0, index, kept, "amax")
        else:
            weights = values.pow(self._priority.alpha)
        self._tree.put(index, torch.where(is_gone, self._tree.leaves.index_select(0, index), weights))
        self.num_changes += len(index)

    def refreshed(self, num_used: int) -> SumTree:
        """Return the tree, up to date; the first `num_used` rows were written at some time."""
        if self._priority.kind == "rank" and self.num_changes * RANKS_LAST >= num_used:
            self._sort(num_used)
        for begin, end in self._stale:
            self._tree.update(begin, end)
        self._stale = []
        return self._tree

    def get_state(self) -> State:
        """Return all priorities, and the ranks as they were last sorted."""
        state = {"leaves": self._tree.leaves, "largest": self._largest, "num_changes": self.num_changes}
        if self._priority.kind == "rank":
            state |= {"values": self._values, "sorted": self._sorted, "num_sorted": self._num_sorted}
        return state

    def set_state(self, state: State) -> None:
        """Go on from `state`: sums follow from the leaves."""
        if ("values" in state) != (self._priority.kind == "rank"):
            raise CheckpointError(f"the checkpoint's buffer is not of priority.kind={self._priority.kind}")
        self._tree.leaves.copy_(state["leaves"])
        self._largest = state["largest"].to(self._largest.device, copy=True)
        self.num_changes = state["num_changes"]
        if self._priority.kind == "rank":
            self._values.copy_(state["values"])
            self._sorted.copy_(state["sorted"])
            self._num_sorted = state["num_sorted"]
        self._stale = [(0, len(self._tree.leaves))]

    def _rank(self, values: Tensor) -> Tensor:
        """Return one more than the number of priorities that were larger when they were last sorted."""
        return torch.searchsorted(self._sorted[: self._num_sorted], -values).double() + 1.0

    def _sort(self, num_used: int) -> None:
        values, order = self._values[:num_used].sort(descending=True, stable=True)
        ranks = torch.arange(1, num_used + 1, dtype=torch.float64, device=order.device)
        weights = torch.where(values == NOBODY, 0.0, ranks.pow(-self._priority.alpha))
        self._tree.leaves.index_copy_(0, order, weights)
        self._sorted[:num_used] = -values
        self._num_sorted, self.num_changes = num_used, 0
        self._stale = [(0, num_used)]

    def _note(self, begin: int, end: int) -> None:
        if self._stale and self._stale[-1][1] == begin:
            self._stale[-1] = (self._stale[-1][0], end)
        else:
            self._stale.append((begin, end))
