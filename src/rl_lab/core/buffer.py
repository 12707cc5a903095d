"""What a buffer is to the orchestrator: it takes trajectories and hands out batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_lab.core.environment import State

Trajectory = dict[str, Any]  # time-major trees [T, N, ...]: see Collector for the keys
Batch = Mapping[str, Any]  # trees of tensors, as the buffer lays them out


class Buffer(ABC):
    """Experience storage. Everything it holds is checkpointed through `get_state`."""

    @abstractmethod
    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether `sample` can answer now."""

    @abstractmethod
    def sample(self) -> Batch:
        """Return the next batch for an update hook."""

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Take what an update returned for the rows of the last sample (priorities, latents)."""
        raise TypeError(f"{type(self).__name__} takes nothing back, but the workflow returned {sorted(values)}")

    @abstractmethod
    def get_state(self) -> State:
        """Return the content and the sampler's state."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
