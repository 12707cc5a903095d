"""Which stored steps belong to the same episode: from where to where, found without a search."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.buffers.storage.row_store import zeros


class Runs:
    """A run is what is stored of an episode without a cut. Every row keeps the slot of its run in the lane's table."""

    def __init__(self, length: int, lanes: int, device: torch.device) -> None:
        self._length = length
        self._first = zeros((lanes, length), torch.int64, device)  # number of the run's first step
        self._last = zeros((lanes, length), torch.int64, device)  # and of its newest one
        self._slot = torch.full((lanes,), -1, dtype=torch.int64, device=device)  # of the newest run

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return 2 * self._first.numel() * self._first.element_size()

    def annotate(self, joins: Tensor, step: int) -> Tensor:
        """Take note of steps [T, N] from number `step` on, T <= length; return the slots their rows keep."""
        begins = ~joins
        slots = (self._slot + begins.cumsum(0)) % self._length  # at most `length` runs are stored: slots do not collide
        self._slot = slots[-1]
        numbers = torch.arange(step, step + len(joins), device=joins.device)[:, None].expand_as(slots)
        # A later run's numbers are larger than what its slot held before.
        self._last.scatter_reduce_(1, slots.T, numbers.T, "amax")
        steps, lanes = begins.nonzero(as_tuple=True)
        self._first[lanes, slots[steps, lanes]] = steps + step
        return slots.int()

    def bounds(self, lanes: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of the first and the newest step of these runs [B]; the first may be overwritten."""
        flat = lanes * self._length + slots
        return self._first.view(-1).index_select(0, flat), self._last.view(-1).index_select(0, flat)

    def rebuild(self, slots: Tensor, written: int) -> None:
        """Recompute it from the slots [length, lanes] of all rows after `written` steps."""
        used = min(written, self._length)
        places = torch.arange(used, device=slots.device)
        numbers = written - 1 - (written - 1 - places) % self._length
        by_lane, numbers = slots[:used].T.long(), numbers.expand(slots.shape[1], -1)
        self._first.scatter_reduce_(1, by_lane, numbers, "amin", include_self=False)
        self._last.zero_().scatter_reduce_(1, by_lane, numbers, "amax")
        self._slot = slots[(written - 1) % self._length].long()
