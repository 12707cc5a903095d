"""Where a sequence can start: counted on the host as rows arrive, drawn on the device without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.core import CheckpointError, ConfigError, EnvSpec, State

Array = NDArray[Any]


class SequenceStarts:
    """Row numbers count up for ever in each lane; the ring holds the last `length` of them.

    With `cross_episodes` every row that has `span - 1` successors is a start. Without it, only those with no `is_first`
    among these successors; their numbers are kept, in order, in a ring of their own.
    """

    def __init__(self, length: int, lanes: int, span: int, cross_episodes: bool, device: torch.device) -> None:
        self._length, self._span, self._device = length, span, device
        self.totals = np.zeros(lanes, np.int64)  # rows ever written
        self._selected = None if cross_episodes else _Selected(length, lanes, span, device)
        self._recount()

    def extend(self, is_first: Tensor, ended: Array) -> None:
        """Count the rows of steps [T, N]: one each, and one more where an episode ended."""
        if self._selected is not None:
            self._selected.extend(is_first.cpu().numpy(), ended, self.totals)
        self.totals = self.totals + len(ended) + ended.sum(0)
        self._recount()

    def is_allowed(self, lane: int, row: int) -> bool:
        """Return whether a sequence can start at this row, the newest of which the ring holds."""
        return self._selected is None or bool(self._selected.is_start[row % self._length, lane])

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return lanes and row numbers of `count` starts, each start equally likely."""
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=self._device)
        bounds, shift = self._table
        order = (uniform * bounds[-1]).long()
        lanes = torch.searchsorted(bounds, order, right=True)
        rows = order + shift[lanes]
        return lanes, rows if self._selected is None else self._selected.kept[rows % self._length, lanes]

    def held(self) -> Array:
        """Return lane and number [R, 2] of every row that the ring holds, lane by lane."""
        spans = [np.arange(max(int(total) - self._length, 0), int(total)) for total in self.totals]
        return np.stack([np.repeat(np.arange(len(spans)), [len(span) for span in spans]), np.concatenate(spans)], 1)

    def get_state(self) -> State:
        """Return the counters and, where not every row is a start, the starts."""
        selected = None if self._selected is None else self._selected.get_state()
        return {"totals": self.totals, "span": self._span, "selected": selected}

    def set_state(self, state: State) -> None:
        """Go on from `state`."""
        if state["span"] != self._span or (state["selected"] is None) != (self._selected is None):
            raise CheckpointError(
                f"the checkpoint's buffer has sequence_length={state['span']} and cross_episodes="
                f"{state['selected'] is None}, this config asks for {self._span} and {self._selected is None}"
            )
        self.totals = np.array(state["totals"])
        if self._selected is not None:
            self._selected.set_state(state["selected"])
        self._recount()

    def _recount(self) -> None:
        """Prepare what `draw` needs on the device: where each lane's starts begin, over all lanes and in its own."""
        if self._selected is None:
            oldest = np.maximum(self.totals - self._length, 0)
            counts = np.maximum(self.totals - oldest - self._span + 1, 0)
        else:
            oldest, counts = self._selected.begins, self._selected.ends - self._selected.begins
        bounds = counts.cumsum()
        self.count = int(bounds[-1])
        self._table = torch.from_numpy(np.stack([bounds, oldest - bounds + counts])).to(self._device)


class _Selected:
    """The starts of sequences that lie within one episode."""

    def __init__(self, length: int, lanes: int, span: int, device: torch.device) -> None:
        self._length, self._span = length, span
        self.kept = torch.zeros(length, lanes, dtype=torch.int64, device=device)  # row numbers, by their order
        self.is_start = np.zeros((length, lanes), np.bool_)  # by ring position
        self.ends = np.zeros(lanes, np.int64)  # starts ever kept
        self.begins = np.zeros(lanes, np.int64)  # of them, those whose rows are gone
        self._runs = np.zeros(lanes, np.int64)  # how many of the newest rows belong to one episode

    def extend(self, is_first: Array, ended: Array, totals: Array) -> None:
        """Take the rows of steps [T, N], numbered from `totals` on."""
        exists, first = _interleave(np.ones_like(ended), ended), _interleave(is_first, np.zeros_like(ended))
        places = exists.cumsum(0)  # 1 for the first new row of a lane
        marks = np.where(first, places, np.iinfo(np.int64).min)
        marks[0] = np.maximum(marks[0], 1 - self._runs)
        runs = places - np.maximum.accumulate(marks, 0) + 1
        numbers = totals + places - 1
        self._forget(numbers, exists)
        starts_here = numbers - self._span + 1
        chosen = exists & (runs >= self._span) & (starts_here > numbers[-1] - self._length)
        slots, lanes = chosen.nonzero()
        starts = starts_here[slots, lanes]
        self.is_start[starts % self._length, lanes] = True
        order = (self.ends + chosen.cumsum(0) - 1)[slots, lanes] % self._length
        where = (torch.from_numpy(order).to(self.kept.device), torch.from_numpy(lanes).to(self.kept.device))
        self.kept[where] = torch.from_numpy(starts).to(self.kept.device)
        self.ends = self.ends + chosen.sum(0)
        self._runs = runs[-1]

    def _forget(self, numbers: Array, exists: Array) -> None:
        """Drop the starts whose rows the new ones overwrite."""
        slots, lanes = exists.nonzero()
        places = numbers[slots, lanes] % self._length
        gone = self.is_start[places, lanes]
        self.begins = self.begins + np.bincount(lanes[gone], minlength=len(self.begins))
        self.is_start[places, lanes] = False

    def get_state(self) -> State:
        """Return every array."""
        return {
            "kept": self.kept,
            "is_start": self.is_start,
            "ends": self.ends,
            "begins": self.begins,
            "runs": self._runs,
        }

    def set_state(self, state: State) -> None:
        """Go on from `state`."""
        self.kept = state["kept"].to(self.kept.device, copy=True)
        self.is_start, self._runs = np.array(state["is_start"]), np.array(state["runs"])
        self.ends, self.begins = np.array(state["ends"]), np.array(state["begins"])


def _interleave(steps: Array, extra: Array) -> Array:
    """Return [2T, N]: each step's row and the place of the row that its end would add."""
    both = np.stack([steps, extra], axis=1)
    return both.reshape(-1, *steps.shape[1:])


def reject_short_episodes(spec: EnvSpec | None, sequence_length: int, cross_episodes: bool) -> None:
    """Refuse sequences that no episode is long enough for."""
    limit = None if spec is None else spec.max_episode_steps
    if limit is not None and not cross_episodes and limit + 1 < sequence_length:
        raise ConfigError(
            f"sequence_length={sequence_length} is longer than any episode ({limit} steps, {limit + 1} rows) "
            "and cross_episodes is false"
        )
