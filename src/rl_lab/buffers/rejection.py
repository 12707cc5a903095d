"""Trajectories that pass a threshold which rises from round to round: what rejection sampling learns from."""

from __future__ import annotations

from collections import deque
from itertools import compress

import torch

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.storage.acceptance import Acceptance, Judge
from rl_lab.buffers.storage.placement import Storage
from rl_lab.core import EnvSpec, State, Trajectory

SCORES = "scores"


class RejectionBuffer(EpisodeBuffer):
    """An episode buffer with the rules of Hi-ORS; a batch also has `scores` [B], what the step's trajectory is worth.

    When a round begins with a higher threshold, trajectories below it are forgotten. Which round it is depends on the
    episodes that came in alone, so a run is the same however collecting is cut.

    Args:
        capacity: Rows to keep: one per env step and one per episode.
        batch_size: Steps per batch.
        acceptance: Which trajectories, and which of their steps.
        chunk_length: Actions per sample; null: one, without a dimension of its own.
        history: Observations per sample; null: one, without a dimension of its own.
        storage: device (where training happens), host (its memory) or disk (mapped files, may be larger than memory).
        device: Where batches go; the lab gives it.
        num_envs: Environment copies; the lab gives it.
        spec: What a step looks like; the lab gives it.
        seed: Of the sampler; the lab gives it.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        acceptance: Acceptance = Acceptance(),  # noqa: B008  (frozen)
        *,
        chunk_length: int | None = None,
        history: int | None = None,
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            capacity,
            batch_size,
            chunk_length=chunk_length,
            history=history,
            storage=storage,
            device=device,
            num_envs=num_envs,
            spec=spec,
            seed=seed,
        )
        acceptance.reject_misfit(spec)
        self._rule, self._judge = acceptance, Judge(acceptance)
        self._filter = self._judge
        self._threshold, self._left_out = acceptance.threshold(0), 0  # of the episodes that it holds; no-op steps

    def add(self, trajectory: Trajectory) -> None:
        """Take `T` vector steps; episodes that end in them are accepted or refused."""
        for episode in self._open.take(self._placement.fetch(trajectory)):
            self._begin_round(self._judge.threshold)
            if self._judge.accepts(episode):
                self._keep(self._scored(episode))

    def statistics(self) -> dict[str, float]:
        """Return what it holds, what was refused and how many steps were left out because nothing happened in them."""
        return {**super().statistics(), "left_out": float(self._left_out)}

    def get_state(self) -> State:
        """Return the episodes, the rounds and the sampler's state."""
        return {**super().get_state(), "threshold": self._threshold, "left_out": self._left_out}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        super().set_state(state)
        self._threshold, self._left_out = state["threshold"], state["left_out"]

    def _scored(self, episode: Trajectory) -> Trajectory:
        """Return the steps that are kept, each with what the trajectory is worth."""
        kept = self._rule.condensed(episode)
        self._left_out += len(episode["rewards"]) - len(kept["rewards"])
        return {**kept, SCORES: torch.full_like(kept["rewards"], self._rule.score(episode), dtype=torch.float64)}

    def _begin_round(self, threshold: float) -> None:
        """Forget what is below a threshold that has risen; the rows stay where they are until they are written over."""
        if threshold <= self._threshold or self._store is None:
            self._threshold = threshold
            return
        first = torch.tensor([row % self.capacity for row, _ in self._episodes], dtype=torch.int64, device=self._home)
        is_kept = self._store.fields[SCORES][first] >= threshold
        kept = list(compress(self._episodes, is_kept.tolist()))
        steps = [torch.arange(row, row + count, device=self._home) for row, count in kept]
        self._threshold, self._episodes = threshold, deque(kept)
        self._steps, self._gone = sum(count for _, count in kept), 0
        if steps:
            self._index[: self._steps] = torch.cat(steps)
