"""Subsequences for world models and recurrent agents: rows of arrival, one ring per environment copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.buffers.storage.arrivals import ArrivalStream, pieces
from rl_lab.buffers.storage.layout import Layout, expected_row
from rl_lab.buffers.storage.placement import Placement, Storage
from rl_lab.buffers.storage.row_store import RowStore
from rl_lab.buffers.storage.sequence_starts import SequenceStarts, reject_short_episodes
from rl_lab.core import Batch, BatchKind, Buffer, ConfigError, EnvSpec, Footprint, LabError, State, Trajectory, tree_map

HOPELESS = 10  # times the rows of a batch, and of a sequence of every lane, without one that could be drawn


class SequenceBuffer(Buffer):
    """Samples [batch_size, sequence_length] rows, uniform over where a sequence can start.

    A row is an observation, the `actions` and `rewards` that led to it, what `act` returned for it, and `is_first`,
    `is_last`, `is_terminal`; the true last observation of an episode is a row of its own. A sequence may run from one
    episode into the next, and then `is_first` says where.

    Args:
        capacity: Rows to keep: one per env step and one per episode.
        batch_size: Sequences per batch.
        sequence_length: Rows per sequence.
        cross_episodes: Whether a sequence may run into the next episode; false: only whole sequences of one episode.
        online: Whether batches take first what is new, each sequence once and in order, and then draw at random.
        min_size: Rows before the first batch; null: as soon as one sequence is there.
        refreshed: Keys that `act` returned and updates write back (latents); kept apart from what never changes.
        storage: device (where training happens), host (its memory) or disk (mapped files, may be larger than memory).
        device: Where batches go; the lab gives it.
        num_envs: Environment copies; the lab gives it.
        spec: What a row looks like; the lab gives it.
        seed: Of the sampler; the lab gives it.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        sequence_length: int,
        *,
        cross_episodes: bool = True,
        online: bool = False,
        min_size: int | None = None,
        refreshed: Sequence[str] = (),
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        if capacity < 1 or batch_size < 1:
            raise ConfigError(f"capacity and batch_size of a buffer must be 1 or more, got {capacity} and {batch_size}")
        if sequence_length < 2:
            raise ConfigError(f"sequence_length must be 2 rows or more, got {sequence_length}: a step lies between two")
        length = capacity // num_envs
        if length < sequence_length:
            raise ConfigError(
                f"capacity={capacity} leaves {length} rows for each of {num_envs} environments, fewer than "
                f"sequence_length={sequence_length}: at least {num_envs * sequence_length} are needed"
            )
        if min_size is not None and min_size > length * num_envs:
            raise ConfigError(f"min_size={min_size} of a buffer is more than capacity={length * num_envs} holds")
        reject_short_episodes(spec, sequence_length, cross_episodes)
        self.capacity, self.batch_size, self.sequence_length = length * num_envs, batch_size, sequence_length
        self._min_size, self._refreshed = min_size or 1, tuple(refreshed)
        self._lanes, self._length, self._spec = num_envs, length, spec
        self._placement = Placement(storage, device)
        self._home = self._placement.home
        self._generator = torch.Generator(self._home).manual_seed(seed)
        self._stream = ArrivalStream()
        self._starts = SequenceStarts(length, num_envs, sequence_length, cross_episodes, self._home)
        self._fresh: deque[tuple[int, int]] | None = deque() if online else None  # (lane, row number), oldest first
        self._stores: dict[str, RowStore] = {}
        self._offsets = torch.arange(sequence_length, device=self._home)
        self._drawn: tuple[Tensor, Tensor, NDArray[np.int64]] | None = None  # lanes, row numbers, totals

    @property
    def size(self) -> int:
        """Return how many rows it holds."""
        return int(np.minimum(self._starts.totals, self._length).sum())

    @property
    def needed_steps(self) -> int:
        """Return the fewest env steps that can make a sequence: one leaves a row, or two where its episode ends."""
        return self._lanes * -(-self.sequence_length // 2)

    @property
    def batch_rows(self) -> int:
        """Return the rows of all sequences of a batch."""
        return self.batch_size * self.sequence_length

    @property
    def batch_kind(self) -> BatchKind:
        """Return that they are stretches of arrival rows."""
        return "sequences"

    def add(self, trajectory: Trajectory) -> None:
        """Append `T` vector steps; more than the ring holds leave only their end."""
        most = max(1, self._length // 2)  # a step makes up to two rows
        for part in pieces(self._placement.fetch(trajectory), most):
            self._add(part)

    def is_ready(self) -> bool:
        """Return whether there is a sequence, and `min_size` rows; raises LabError when there will hardly be one."""
        if self._starts.count == 0:
            self._reject_hopeless()
            return False
        return self.size >= self._min_size

    def sample(self) -> Batch:
        """Return sequences as trees [batch_size, sequence_length, ...] with the `indices` of their rows."""
        self._reject_unready()
        fresh = self._take_fresh()
        lanes, rows = self._starts.draw(self.batch_size - len(fresh), self._generator)
        if fresh:
            taken = self._placement.bring(torch.tensor(fresh))
            lanes, rows = torch.cat([taken[:, 0], lanes]), torch.cat([taken[:, 1], rows])
        numbers, lanes = rows[:, None] + self._offsets, lanes[:, None]
        self._drawn = (lanes, numbers, self._starts.totals)
        return self._gather(lanes, numbers)

    def draw(self, num_rows: int | None = None) -> Batch:
        """Return the next batch; or, where single rows are enough, as many as [num_rows, 1, ...], of sequences."""
        if num_rows is None:
            return self.sample()
        self._reject_unready()
        lanes, rows = self._starts.draw(num_rows, self._generator)
        steps = torch.randint(self.sequence_length, rows.shape, generator=self._generator, device=self._home)
        self._drawn = (lanes[:, None], (rows + steps)[:, None], self._starts.totals)
        return self._gather(*self._drawn[:2])

    def peek(self, seed: int) -> Batch:
        """Return sequences that are drawn at random from this seed; what is new stays so."""
        self._reject_unready()
        lanes, rows = self._starts.draw(self.batch_size, torch.Generator(self._home).manual_seed(seed))
        return self._gather(lanes[:, None], rows[:, None] + self._offsets)

    def sweep(self) -> Iterator[Batch]:
        """Yield all rows, as batches [batch_size * sequence_length, 1, ...]; the last row fills up the last batch."""
        rows = self._starts.held()
        rows = np.pad(rows, ((0, -len(rows) % self.batch_rows), (0, 0)), "edge") if len(rows) else rows
        for begin in range(0, len(rows), self.batch_rows):
            part = self._placement.bring(torch.from_numpy(rows[begin : begin + self.batch_rows]))
            self._drawn = (part[:, :1], part[:, 1:], self._starts.totals)
            yield self._gather(*self._drawn[:2])

    def _gather(self, lanes: Tensor, numbers: Tensor) -> Batch:
        """Return the rows of these numbers [batch_size, sequence_length] and lanes [batch_size, 1]."""
        index = numbers % self._length * self._lanes + lanes
        batch: dict[str, Any] = {"indices": index}
        for store in self._stores.values():
            batch |= store.gather(index)
        return self._placement.deliver(batch)

    def _reject_hopeless(self) -> None:
        """Say early that no episode is long enough: without an update they do not get longer."""
        written = int(self._starts.totals.sum())
        if written >= HOPELESS * self.sequence_length * max(self.batch_size, self._lanes):
            raise LabError(
                f"sequence_length={self.sequence_length} of a buffer is longer than every episode it holds, after "
                f"{written} rows, and cross_episodes is false: make it shorter, or cross_episodes true"
            )

    def _reject_unready(self) -> None:
        if not self.is_ready():
            raise LabError(
                f"a sequence buffer was sampled before it was ready: {self.size} rows of {self._min_size}, "
                f"{self._starts.count} sequences of {self.sequence_length} rows"
            )

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Replace the `refreshed` keys of the rows of the last batch, leaves [batch_size, sequence_length, ...].

        Of several values for one row the last counts; rows that were overwritten meanwhile are left alone.
        """
        if self._drawn is None or not values.keys() <= set(self._refreshed):
            wanted = sorted(self._refreshed)
            raise LabError(f"a sequence buffer takes back {wanted} (refreshed) after a sample, got {sorted(values)}")
        lanes, numbers, totals = self._drawn
        index = (numbers % self._length * self._lanes + lanes).flatten()
        order, held = self._last_of_each(index), None
        if totals is not self._starts.totals:  # rows were added since
            oldest = self._placement.bring(torch.from_numpy(self._starts.totals - self._length))
            held = (numbers >= oldest[lanes]).flatten()[order]
        rows = self._placement.fetch(tree_map(lambda leaf: leaf.flatten(0, 1), dict(values)))
        self._stores["refreshed"].patch(index[order], tree_map(lambda leaf: leaf[order], rows), held)

    def statistics(self) -> dict[str, float]:
        """Return how much it holds and how many sequences can be drawn."""
        return {"size": float(self.size), "sequences": float(self._starts.count)}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return its size once it is full, without what `act` adds."""
        if self._spec is None:
            return ()
        row = Layout.of(ArrivalStream().take(expected_row(self._spec)).rows)
        is_on_disk = self._placement.is_on_disk
        return (Footprint(row.row_bytes * self.capacity, self.capacity, self._home, is_on_disk),)

    def attach(self, directory: Path) -> None:
        """Learn where its mapped files may lie."""
        self._placement.attach(directory)

    def get_state(self) -> State:
        """Return rows, counters, what is new and the sampler's state."""
        return {
            "stores": {name: store.get_state() for name, store in self._stores.items()},
            "starts": self._starts.get_state(),
            "stream": self._stream.get_state(),
            "fresh": None if self._fresh is None else [list(item) for item in self._fresh],
            "rng": self._generator.get_state(),
        }

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        self._stores = {
            name: RowStore.from_state(store, self._length, self._lanes, self._home, self._placement.file(name))
            for name, store in state["stores"].items()
        }
        self._drawn = None
        self._starts.set_state(state["starts"])
        self._stream.set_state(state["stream"], self._home)
        if self._fresh is not None:
            self._fresh = deque((lane, row) for lane, row in state["fresh"] or [])
        self._generator.set_state(state["rng"])

    def _add(self, trajectory: Trajectory) -> None:
        arrivals = self._stream.take(trajectory)
        ended, before = arrivals.ended, self._starts.totals
        ends = ended.cpu().numpy()  # the only wait for the device
        newest = before + (1 + ends.astype(np.int64)).cumsum(0) - 1  # of each step's rows
        numbers = torch.from_numpy(newest).to(self._home)
        lanes = torch.arange(self._lanes, device=self._home).expand_as(numbers)
        index = (numbers - ended.long()) % self._length * self._lanes + lanes
        self._put(tree_map(lambda leaf: leaf.flatten(0, 1), arrivals.rows), index.flatten())
        if ends.any():
            index = numbers % self._length * self._lanes + lanes
            self._put(tree_map(lambda leaf: leaf[ended], arrivals.last), index[ended])
        self._starts.extend(arrivals.rows["is_first"], ends)
        if self._fresh is not None:
            self._queue_fresh(before, newest)

    def _put(self, rows: Mapping[str, Any], index: Tensor) -> None:
        for name, keys in self._split(rows).items():
            part = {key: rows[key] for key in keys}
            if name not in self._stores:
                layout, file = Layout.of(part, lead=1), self._placement.file(name)
                self._stores[name] = RowStore(layout, self._length, self._lanes, self._home, file)
            self._stores[name].put(index, part)

    def _split(self, rows: Mapping[str, Any]) -> dict[str, list[str]]:
        if missing := sorted(set(self._refreshed) - rows.keys()):
            raise LabError(f"refreshed names {missing}, which act does not return (rows have: {sorted(rows)})")
        fixed = [key for key in rows if key not in self._refreshed]
        return {"rows": fixed, **({"refreshed": list(self._refreshed)} if self._refreshed else {})}

    def _last_of_each(self, index: Tensor) -> Tensor:
        """Return places into `index` [R] where every place of the same row is replaced by the last of them."""
        places = torch.arange(len(index), device=self._home)
        last = torch.zeros(self.capacity, dtype=torch.int64, device=self._home)
        return last.scatter_reduce(0, index, places, "amax")[index]

    def _queue_fresh(self, before: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Queue every sequence that became whole, step by step: rows 0 to T-1 of a copy, T to 2T-1 and so on."""
        assert self._fresh is not None
        span = self.sequence_length
        whole = np.concatenate([before[None], numbers + 1]) // span
        for step, lane in np.argwhere(np.diff(whole, axis=0)).tolist():
            for sequence in range(whole[step, lane], whole[step + 1, lane]):
                if self._starts.is_allowed(lane, int(sequence) * span):
                    self._fresh.append((lane, int(sequence) * span))
        if len(self._fresh) > self.capacity // span + self._lanes:  # more than the ring holds
            self._fresh = deque(item for item in self._fresh if self._is_held(*item))

    def _take_fresh(self) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        while self._fresh and len(taken) < self.batch_size:
            if self._is_held(*self._fresh[0]):
                taken.append(self._fresh[0])
            self._fresh.popleft()
        return taken

    def _is_held(self, lane: int, row: int) -> bool:
        return row >= int(self._starts.totals[lane]) - self._length
