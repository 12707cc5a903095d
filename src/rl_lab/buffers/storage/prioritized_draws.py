"""What prioritized buffers share: rows drawn by chance, what they weigh, and priorities that come back for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from rl_lab.buffers.storage.chances import Chances, Priority
from rl_lab.core import LabError, State

Written = TypeVar("Written")  # how much was written when a batch was drawn, as the buffer counts it


class PrioritizedDraws(Generic[Written]):
    """Stratified draws of rows by priority.

    Args:
        priority: How priorities become probabilities and weights.
        capacity: Rows that there can be.
        batch_size: Rows of a batch.
        home: Where the chances are.
    """

    def __init__(self, priority: Priority, capacity: int, batch_size: int, home: torch.device) -> None:
        self.chances = Chances(priority, capacity, home)
        self._priority, self._batch_size, self._home = priority, batch_size, home
        self._batches = 0
        self._strata = torch.arange(batch_size, dtype=torch.float64, device=home)
        self._last: tuple[Tensor, Written] | None = None  # rows of the last batch, and how much was written by then

    @property
    def beta(self) -> float:
        """How far weights correct for the priorities of the next batch."""
        return self._priority.beta_after(self._batches)

    def draw(
        self, num_rows: int, num_choices: int, written: Written, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return rows [B] among the first `num_rows`, of which `num_choices` can be drawn, and their weights [B]."""
        beta = self.beta
        self._batches += 1
        tree = self.chances.refreshed(num_rows)
        noise = torch.rand(self._batch_size, dtype=torch.float64, generator=generator, device=self._home)
        total = tree.total
        index = tree.find((self._strata + noise) * (total / self._batch_size))
        weights = (tree.leaves.index_select(0, index) * (num_choices / total)).pow(-beta)
        self._last = (index, written)
        return index, (weights / weights.max()).float()

    def last(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Written]:
        """Return the rows of the last batch and how much was written by then, if `values` are priorities of it."""
        if self._last is None or set(values) != {"priorities"}:
            raise LabError(f"a prioritized buffer takes back priorities after a sample, got {sorted(values)}")
        index, _ = self._last
        if values["priorities"].shape != index.shape:
            found, wanted = list(values["priorities"].shape), list(index.shape)
            raise LabError(f"a prioritized buffer was given back priorities {found} for a batch {wanted}")
        return self._last

    def get_state(self) -> State:
        """Return the priorities and the number of batches, which beta follows."""
        return {"chances": self.chances.get_state(), "batches": self._batches}

    def set_state(self, state: State) -> None:
        """Hold what `state` held; there is no last batch."""
        self.chances.set_state(state["chances"])
        self._batches, self._last = state["batches"], None
