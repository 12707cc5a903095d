"""Prioritized experience replay (Schaul et al., 2016): steps that taught much are drawn more often, and weigh less."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_lab.buffers.ring import RingBuffer
from rl_lab.buffers.storage.chances import Priority
from rl_lab.buffers.storage.placement import Storage
from rl_lab.buffers.storage.prioritized_draws import PrioritizedDraws
from rl_lab.core import Batch, EnvSpec, Footprint, State, Trajectory


class PrioritizedReplayBuffer(RingBuffer):
    """Draws env steps by priority, stratified; `weights` correct for it and are at most 1 within a batch.

    New steps get the largest priority there ever was. An update returns `Update(..., write_back={"priorities": [B]})`.

    Args:
        capacity: Env steps to keep, shared by all environment copies.
        batch_size: Transitions per batch.
        priority: How priorities become probabilities and weights.
        n_step: Steps of reward in one transition; fewer at the end of an episode and of what is stored.
        gamma: Discount per step; where YAML says none, that of the workflow.
        min_size: Env steps before the first batch; null: batch_size.
        frame_stack: Frames that a picture shows along its channels; what they share is stored once.
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
        *,
        priority: Priority = Priority(),  # noqa: B008  (frozen)
        n_step: int = 1,
        gamma: float = 0.99,
        min_size: int | None = None,
        frame_stack: int = 1,
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            capacity,
            batch_size,
            n_step=n_step,
            gamma=gamma,
            min_size=min_size,
            frame_stack=frame_stack,
            storage=storage,
            device=device,
            num_envs=num_envs,
            spec=spec,
            seed=seed,
        )
        self._draws: PrioritizedDraws[int] = PrioritizedDraws(priority, self.capacity, batch_size, self._home)
        self._chances = self._draws.chances

    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps with the largest priority; the oldest make room."""
        ring = self._transitions
        written, oldest = ring.written, ring.oldest
        super().add(trajectory)
        for begin, end in self._places(max(written, ring.oldest), ring.written):
            self._chances.admit(begin, end)
        self._chances.num_changes += (ring.written - written) * ring.lanes
        for begin, end in self._places(max(oldest, ring.written - ring.length), ring.oldest):
            self._chances.drop(begin, end)  # their pictures are gone

    def sample(self) -> Batch:
        """Return `batch_size` transitions with their `weights`."""
        self._reject_early()
        ring = self._transitions
        num_rows = min(ring.written, ring.length) * ring.lanes
        index, weights = self._draws.draw(num_rows, self.size, ring.written, self._generator)
        batch = self._fetch(index)
        batch["weights"] = self._placement.deliver(weights)
        return batch

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Take new `priorities` [B] of the last batch; rows that were overwritten meanwhile keep what they have."""
        index, written = self._draws.last(values)
        ring = self._transitions
        place = index.div(ring.lanes, rounding_mode="floor")
        is_gone = (place - written) % ring.length < ring.written - written
        if ring.oldest > max(0, ring.written - ring.length):  # their pictures were
            is_gone |= (ring.written - 1 - place) % ring.length >= ring.written - ring.oldest
        self._chances.put(index, values["priorities"].to(self._home), is_gone)

    def statistics(self) -> dict[str, float]:
        """Return how much it holds and the present beta."""
        return {"size": float(self.size), "beta": self._draws.beta}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return its size once it is full, and that of the priorities, which are in memory."""
        rows = super().footprint()
        return (*rows, Footprint(self._chances.num_bytes, self.capacity, self._home)) if rows else ()

    def get_state(self) -> State:
        """Return transitions, priorities and the sampler's state."""
        return super().get_state() | self._draws.get_state()

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        super().set_state(state)
        self._draws.set_state(state)

    def _places(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the rows of the steps from number `begin` up to `end` as ranges, two where they go round the end."""
        length, lanes = self._transitions.length, self._transitions.lanes
        if begin >= end:
            return []
        first, count = begin % length, end - begin
        ranges = [(first, min(length, first + count)), (0, max(0, first + count - length))]
        return [(a * lanes, b * lanes) for a, b in ranges if b > a]
