"""What agents that are trained as one have apart: buffers, and statistics of their episodes.

Trajectories hold the environments of all agents, those of the first one first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.buffer import Batch, BatchKind, Buffer, Footprint, State, Trajectory, Witness
from rl_lab.core.metrics import Mean
from rl_lab.core.trees import tree_cat, tree_map
from rl_lab.orchestration.episodes import EpisodeStatistics


class PerSeedBuffer(Buffer):
    """Hands every agent's columns to its buffer, and joins what they draw: rows of the first agent come first.

    Args:
        parts: The agents' buffers, all alike.
    """

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = list(parts)

    @property
    def size(self) -> int:
        """Return how many env steps of each agent it holds."""
        return self._parts[0].size

    @property
    def brings_data(self) -> bool:
        """Return what the parts do."""
        return self._parts[0].brings_data

    @property
    def is_on_policy(self) -> bool:
        """Return what the parts are."""
        return self._parts[0].is_on_policy

    @property
    def needed_steps(self) -> int:
        """Return how many env steps each agent waits for."""
        return self._parts[0].needed_steps

    @property
    def batch_rows(self) -> int:
        """Return how many env steps a batch of one agent replays."""
        return self._parts[0].batch_rows

    @property
    def joins(self) -> tuple[str, ...]:
        """Return what the parts do."""
        return self._parts[0].joins

    @property
    def batch_kind(self) -> BatchKind | None:
        """Return what those of the parts are."""
        return self._parts[0].batch_kind

    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps [T, S N, ...]."""
        for number, part in enumerate(self._parts):
            part.add(tree_map(partial(self._piece, number=number, dim=1), trajectory))

    def witness(self, seen: Witness) -> None:
        """Tell all parts."""
        for part in self._parts:
            part.witness(seen)

    def end_episodes(self) -> None:
        """Tell all parts."""
        for part in self._parts:
            part.end_episodes()

    def _piece(self, leaf: Tensor, *, number: int, dim: int) -> Tensor:
        return leaf.chunk(len(self._parts), dim)[number]

    def is_ready(self) -> bool:
        """Return whether all parts are."""
        return all(part.is_ready() for part in self._parts)

    def sample(self) -> Batch:
        """Return the parts' batches after each other."""
        return tree_cat([part.sample() for part in self._parts])

    def peek(self, seed: int) -> Batch:
        """Return the parts' batches that are drawn from this seed."""
        return tree_cat([part.peek(seed) for part in self._parts])

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Give every part what concerns its rows of the last batch."""
        for number, part in enumerate(self._parts):
            part.write_back(tree_map(partial(self._piece, number=number, dim=0), values))

    def statistics(self) -> dict[str, float]:
        """Return those of the first agent's part; the others have as much."""
        return self._parts[0].statistics()

    def footprint(self) -> tuple[Footprint, ...]:
        """Return what all parts take up."""
        count = len(self._parts)
        return tuple(taken._replace(num_bytes=count * taken.num_bytes) for taken in self._parts[0].footprint())

    def attach(self, directory: Path) -> None:
        """Give every part a directory of its own within this one."""
        for number, part in enumerate(self._parts):
            part.attach(directory / f"seed_{number}")

    def get_state(self) -> State:
        """Return the state of every part."""
        return {f"seed_{number}": part.get_state() for number, part in enumerate(self._parts)}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        for number, part in enumerate(self._parts):
            part.set_state(state[f"seed_{number}"])


class EpisodesOfAgents(EpisodeStatistics):
    """The statistics of several agents' episodes together, and the returns of each agent's own.

    Args:
        num_seeds: Of agents.
        num_envs: Of all agents together.
    """

    def __init__(self, num_seeds: int, num_envs: int) -> None:
        super().__init__(num_envs)
        self._own = torch.zeros(2, num_seeds, dtype=torch.float64)  # returns, episodes since the last drain

    def _close(self, done: Tensor) -> None:
        ended = torch.stack((self._returns * done, done.to(self._returns.dtype)))
        self._own += ended.unflatten(1, (self._own.shape[1], -1)).sum(-1, dtype=torch.float64)
        super()._close(done)

    def drain(self) -> dict[str, Mean]:
        """Return the means of all episodes since the last call, and the mean return of every agent's."""
        means = super().drain()
        own, self._own = self._own, torch.zeros_like(self._own)
        pairs = zip(*(row.unbind() for row in own), strict=True)
        return means | {f"return/seed_{number}": Mean(*pair) for number, pair in enumerate(pairs)}

    def get_state(self) -> dict[str, Any]:
        """Return the running episodes and the sums."""
        return {**super().get_state(), "own": self._own}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Follow the episodes of `state`."""
        super().set_state(state)
        self._own = state["own"].clone()


def episode_statistics(num_seeds: int, num_envs: int) -> EpisodeStatistics:
    """Return the statistics of one agent's episodes, or of several agents' who share the environments."""
    return EpisodeStatistics(num_envs) if num_seeds == 1 else EpisodesOfAgents(num_seeds, num_envs)
