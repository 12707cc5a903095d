"""Demonstrations that grow while a robot learns: what a dataset, a teacher or a correcting operator has shown.

Half of every batch of RLPD comes from here (HIL-SERL; Luo et al., 2024, https://arxiv.org/abs/2410.21845). Steps are
kept one by one with what they led to, so that a correction which begins in the middle of an episode is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.buffers.datasets.format import DatasetError
from rl_lab.buffers.datasets.open import Format, open_dataset
from rl_lab.buffers.datasets.trajectory import Converter
from rl_lab.buffers.ring import RingBuffer
from rl_lab.buffers.union import BESIDE, INFOS
from rl_lab.core import Batch, BatchKind, Buffer, ConfigError, EnvSpec, Footprint, State, Trajectory, tree_map

IS_TEACHER = "is_teacher"  # key of a trajectory: the teacher acted
IS_INTERVENTION = "is_intervention"  # info of a step: the operator acted


class DemonstrationBuffer(Buffer):
    """Takes the steps that a teacher or an operator did and passes over all others; samples from a buffer of its own.

    Checkpoints hold all of it, that of the dataset too: a run goes on without the files it began with.

    Args:
        into: Holds and samples the steps: a replay buffer with `_partial_: true`, for one lane of steps.
        path: A dataset to begin with; null: none.
        format: `lab`, `lerobot`, `minari`, or `auto` to find out.
        episodes: Numbers of the episodes to load, or how many of the first ones; null: all.
        device: Where the steps live; the lab gives it.
        spec: What observations and actions must look like; the lab gives it.
    """

    def __init__(
        self,
        into: Callable[..., Buffer],
        *,
        path: str | None = None,
        format: Format = "auto",
        episodes: int | Sequence[int] | None = None,
        device: torch.device | str = "cpu",
        spec: EnvSpec | None = None,
    ) -> None:
        if isinstance(into, Buffer):
            raise ConfigError("into of a demonstration buffer needs _partial_: true (it has one lane, not num_envs)")
        inner = into(num_envs=1)
        if not isinstance(inner, RingBuffer):
            raise ConfigError("into of a demonstration buffer must be a ReplayBuffer or a PrioritizedReplayBuffer")
        if inner.n_step > 1:
            raise ConfigError(f"into.n_step={inner.n_step}: steps of a demonstration buffer stand alone (1)")
        self._inner, self.batch_size, self._steps = inner, inner.batch_size, 0
        if path is not None:
            self._load(path, format, episodes, Converter(spec), torch.device(device))

    @property
    def size(self) -> int:
        """Return how many env steps it holds."""
        return self._inner.size

    @property
    def brings_data(self) -> bool:
        """Return whether the dataset is enough to begin with."""
        return self.is_ready()

    @property
    def batch_rows(self) -> int:
        """Return how many steps a batch has."""
        return self.batch_size

    @property
    def batch_kind(self) -> BatchKind | None:
        """Return what the inner buffer's are."""
        return self._inner.batch_kind

    def add(self, trajectory: Trajectory) -> None:
        """Store those of `T` vector steps that were shown."""
        steps, lanes = _shown(trajectory).nonzero(as_tuple=True)  # in the order of time, wherever collecting is cut
        if len(steps):
            self._inner.add(tree_map(lambda leaf: leaf[steps, lanes].unsqueeze(1), _bare(trajectory)))
            self._steps += len(steps)

    def is_ready(self) -> bool:
        """Return whether a batch can be drawn."""
        return self._inner.is_ready()

    def sample(self) -> Batch:
        """Return steps, each as likely as any other."""
        return self._inner.sample()

    def peek(self, seed: int) -> Batch:
        """Return what is drawn from this seed."""
        return self._inner.peek(seed)

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Hand it to the inner buffer."""
        self._inner.write_back(values)

    def statistics(self) -> dict[str, float]:
        """Return those of the inner buffer, and how many steps were shown in this run."""
        return {**self._inner.statistics(), "shown": float(self._steps)}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return the inner buffer's."""
        return tuple(
            taken._replace(part=".".join(filter(None, ("into", taken.part)))) for taken in self._inner.footprint()
        )

    def attach(self, directory: Path) -> None:
        """Let the inner buffer keep its files there."""
        self._inner.attach(directory)

    def get_state(self) -> State:
        """Return all steps, and how many were shown in this run."""
        return {"into": self._inner.get_state(), "steps": self._steps}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        self._inner.set_state(state["into"])
        self._steps = state["steps"]

    def _load(
        self, path: str, format: Format, episodes: int | Sequence[int] | None, convert: Converter, device: torch.device
    ) -> None:
        reader = open_dataset(path, format)
        wanted = reader.select(episodes)
        rows = sum(reader.lengths[number] for number in wanted)
        if not rows:
            raise DatasetError(f"{path} has no episodes")
        if rows > self._inner.capacity:
            raise ConfigError(f"into.capacity={self._inner.capacity} is less than the {rows} steps of {path}")
        for number in wanted:
            trajectory = convert(reader.read(number), f"{path}, episode {number}", device)
            if trajectory is not None:
                self._inner.add(_bare(trajectory))


def _bare(trajectory: Trajectory) -> Trajectory:
    """Return the steps without what is recorded beside them: a dataset has other infos than this run."""
    return {key: value for key, value in trajectory.items() if key not in BESIDE}


def _shown(trajectory: Mapping[str, Any]) -> Tensor:
    """Return which of the steps [T, N] a teacher or an operator did."""
    nothing = torch.zeros_like(trajectory["terminated"])
    by_operator = trajectory.get(INFOS, {}).get(IS_INTERVENTION, nothing)
    return trajectory.get(IS_TEACHER, nothing) | (by_operator > 0)
