"""What a buffer is to the orchestrator: it takes trajectories and hands out batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rl_lab.core.environment import State
from rl_lab.core.errors import LabError

Trajectory = dict[str, Any]  # time-major trees [T, N, ...]: see Collector for the keys
Batch = Mapping[str, Any]  # trees of tensors, as the buffer lays them out
BatchKind = Literal["transitions", "sequences", "prioritized sequences", "steps of episodes", "rollouts"]


@dataclass(frozen=True, eq=False)
class Segment:
    """A leaf of a state tree that never changes under its key: a checkpoint writes it once and later ones link it."""

    key: str  # unique for ever, a uuid4 in hex
    tensor: Tensor


class Witness(NamedTuple):
    """When the steps of a trajectory were taken and who watched: never learned from, nor checkpointed."""

    times: tuple[float, ...]  # seconds since 1970 at the end of each vector step
    operator: str | None = None  # who watched; None: nobody


class Footprint(NamedTuple):
    """What a buffer will take up in one place once it is full."""

    num_bytes: int
    capacity: int  # env steps
    device: torch.device
    is_on_disk: bool = False
    is_in_checkpoints: bool = True  # whether a checkpoint holds it too
    part: str = ""  # of a buffer within this one, its path in the config
    sized_by: str = ""  # what to make smaller, where that is not the buffer's own `capacity`


class Buffer(ABC):
    """Experience storage. Everything it holds is checkpointed through `get_state`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Return how many env steps it holds."""

    @property
    def brings_data(self) -> bool:
        """Return whether it can be sampled with nothing collected into it: it loads what it has when first used."""
        return False

    @property
    def is_on_policy(self) -> bool:
        """Return whether its steps must come from the very weights that learn from them."""
        return False

    @property
    def needed_steps(self) -> int:
        """Return how many collected env steps its first batch waits for; 0: that is not known beforehand."""
        return 0

    @property
    def batch_rows(self) -> int:
        """Return how many env steps a batch replays; 0: that is not known beforehand."""
        return 0

    @property
    def batch_kind(self) -> BatchKind | None:
        """Return what its batches are; None: something of its own."""
        return None

    @property
    def joins(self) -> tuple[str, ...]:
        """Return the names of other buffers that it draws from, instead of holding anything."""
        return ()

    def meet(self, others: Mapping[str, Buffer]) -> None:  # noqa: B027  (most buffers stand alone)
        """Hear of all buffers of the run; called once, before anything is added."""

    @abstractmethod
    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps."""

    def receive(self, trajectory: Trajectory, seen: Witness | None) -> None:
        """Take what was collected: hear of it, then store it."""
        if seen is not None:
            self.witness(seen)
        self.add(trajectory)

    def witness(self, seen: Witness) -> None:  # noqa: B027  (most buffers keep only what is learned from)
        """Hear of the steps that `add` brings next."""

    def end_episodes(self) -> None:  # noqa: B027  (most buffers learn from steps, whatever comes after them)
        """Know that open episodes have ended where they are: the environment has failed, and nothing more comes."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether `sample` can answer now."""

    def shortage(self) -> str:
        """Return, for people, what there is where that is too little for `sample`."""
        return ", ".join(f"{key}: {value:g}" for key, value in self.statistics().items())

    @abstractmethod
    def sample(self) -> Batch:
        """Return the next batch for an update hook."""

    def draw(self, num_rows: int | None = None) -> Batch:
        """Return the next batch; where `num_rows` single rows are enough, a buffer may draw no more than these."""
        return self.sample()

    def peek(self, seed: int) -> Batch:
        """Return a batch drawn from this seed; what `sample` and `write_back` do next stays as it was."""
        raise LabError(f"{type(self).__name__} can be sampled, but not looked into")

    def limits(self, key: str) -> tuple[Any, Any]:
        """Return the lowest and the highest of each number of `key` in all that it holds; of pictures None."""
        raise LabError(f"{type(self).__name__} does not tell the limits of its {key}")

    def sweep(self) -> Iterator[Batch]:
        """Yield all rows that it holds, in batches of one size; `write_back` after each is about its rows."""
        raise LabError(f"{type(self).__name__} can be sampled, but not gone through row by row")

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Take what an update returned for the rows of the last sample (priorities, latents)."""
        raise TypeError(f"{type(self).__name__} takes nothing back, but the workflow returned {sorted(values)}")

    @abstractmethod
    def get_state(self) -> State:
        """Return the content and the sampler's state."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""

    def statistics(self) -> dict[str, float]:
        """Return numbers worth logging, computed on the host without waiting for a device."""
        return {"size": float(self.size)}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return what it will take up once it is full, for each place; nothing when nothing bounds it."""
        return ()

    def attach(self, directory: Path) -> None:  # noqa: B027  (most buffers keep no files)
        """Learn where files of its own may lie; called once, before the first `add`."""
