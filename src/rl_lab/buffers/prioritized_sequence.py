"""Subsequences by priority: where a sequence taught much, one is drawn more often, and weighs less (TD-MPC)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.buffers.storage.chances import Priority
from rl_lab.buffers.storage.placement import Storage
from rl_lab.buffers.storage.prioritized_draws import PrioritizedDraws
from rl_lab.core import Batch, BatchKind, EnvSpec, Footprint, State, Trajectory


class PrioritizedSequenceBuffer(SequenceBuffer):
    """Draws sequences by the priority of the row they start at, stratified; `weights` [B] correct for it, at most 1.

    New starts get the largest priority there ever was. An update returns `Update(..., write_back={"priorities": [B]})`.

    Args:
        capacity: Rows to keep: one per env step and one per episode.
        batch_size: Sequences per batch.
        sequence_length: Rows per sequence.
        priority: How priorities become probabilities and weights.
        cross_episodes: Whether a sequence may run into the next episode; false: only whole sequences of one episode.
        min_size: Rows before the first batch; null: as soon as one sequence is there.
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
        priority: Priority = Priority(),  # noqa: B008  (frozen)
        cross_episodes: bool = True,
        min_size: int | None = None,
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            capacity,
            batch_size,
            sequence_length,
            cross_episodes=cross_episodes,
            min_size=min_size,
            storage=storage,
            device=device,
            num_envs=num_envs,
            spec=spec,
            seed=seed,
        )
        self._draws: PrioritizedDraws[NDArray[np.int64]]  # rows where sequences start
        self._draws = PrioritizedDraws(priority, self.capacity, batch_size, self._home)
        self._chances = self._draws.chances

    @property
    def batch_kind(self) -> BatchKind:
        """Return that they are stretches of arrival rows which want priorities back."""
        return "prioritized sequences"

    def sample(self) -> Batch:
        """Return sequences as trees [batch_size, sequence_length, ...] with their `weights` [batch_size]."""
        self._reject_unready()
        starts, num_rows = self._starts, min(int(self._starts.totals.max()), self._length) * self._lanes
        index, weights = self._draws.draw(num_rows, starts.count, starts.totals, self._generator)
        rows, lanes = index.div(self._lanes, rounding_mode="floor")[:, None], (index % self._lanes)[:, None]
        return {
            **self._gather(lanes, rows + self._offsets),
            "weights": self._placement.deliver(weights),
        }

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Take new `priorities` [B] of the last batch; rows that were overwritten meanwhile keep what they have."""
        index, totals = self._draws.last(values)
        is_gone = torch.zeros_like(index, dtype=torch.bool)
        if totals is not self._starts.totals:  # rows were added since
            lanes, row = index % self._lanes, index.div(self._lanes, rounding_mode="floor")
            before, added = (
                torch.from_numpy(count).to(self._home)[lanes] for count in (totals, self._starts.totals - totals)
            )
            is_gone = (row - before) % self._length < added
        self._chances.put(index, values["priorities"].to(self._home), is_gone)

    def statistics(self) -> dict[str, float]:
        """Return how much it holds, how many sequences can be drawn and the present beta."""
        return super().statistics() | {"beta": self._draws.beta}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return its size once it is full, and that of the priorities, which are in memory."""
        rows = super().footprint()
        return (*rows, Footprint(self._chances.num_bytes, self.capacity, self._home)) if rows else ()

    def get_state(self) -> State:
        """Return rows, counters, priorities and the sampler's state."""
        return super().get_state() | self._draws.get_state()

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        super().set_state(state)
        self._draws.set_state(state)

    def _add(self, trajectory: Trajectory) -> None:
        before = self._starts.totals
        super()._add(trajectory)
        gone, new = [], []
        for lane, (begin, end) in enumerate(zip(before.tolist(), self._starts.totals.tolist(), strict=True)):
            oldest = max(0, end - self._length)
            gone += [row % self._length * self._lanes + lane for row in range(max(begin, oldest), end)]
            starts = range(max(begin - self.sequence_length + 1, oldest), end - self.sequence_length + 1)
            new += [r % self._length * self._lanes + lane for r in starts if self._starts.is_allowed(lane, r)]
        self._chances.replace(*(torch.tensor(rows, dtype=torch.int64).to(self._home) for rows in (gone, new)))
