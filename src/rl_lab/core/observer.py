"""How an environment makes observations of what sensors read: that part of it which goes with an exported policy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rl_lab.core.spaces import Box

Observation = Tensor | dict[str, Tensor]  # leading dimension is num_envs


class Observer(nn.Module):
    """From the readings of one step, and what is kept of those before, to the observation of the environment."""

    space: Mapping[str, Box]  # what is read in one step, by name

    @abstractmethod
    def initial_carry(self, num_envs: int) -> Any:
        """Return what is kept of earlier steps: a tree of tensors, forgotten where an episode begins."""

    @abstractmethod
    def forward(self, readings: Mapping[str, Tensor], carry: Any, is_first: Tensor) -> tuple[Observation, Any]:
        """Return the observation and the next carry."""

    @abstractmethod
    def readings(self, obs: Observation) -> dict[str, Tensor]:
        """Return readings that lead to the newest part of an observation."""
