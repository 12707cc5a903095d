"""The vector environment every room speaks to: batched tensors, same-step auto-reset, exact state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rl_lab.core.observer import Observation, Observer
from rl_lab.core.spaces import EnvSpec

Actions = Tensor | dict[str, Tensor]  # a dict where the spec's action is one; leading dimension is num_envs
Instruction = Literal["hold", "fresh", "success", "failure", "abort"]  # the last three end the episode, and say how
State = dict[str, Any]  # a tree of tensors, arrays, numbers and strings; see core.trees


class Step(NamedTuple):
    """What one vector step returns. Tensors belong to the caller: the environment never writes to them again."""

    observations: Observation  # where an episode ended, already the first observation of the next one
    rewards: Tensor  # [N] float32
    terminated: Tensor  # [N] bool: the task ended
    truncated: Tensor  # [N] bool: the episode was cut (time limit), never True together with terminated
    final_observations: Observation  # what the step itself led to; equals `observations` where no episode ended
    infos: Mapping[str, Tensor] = MappingProxyType({})  # [N] float32 by name: what the environment was asked to report


class VectorEnv(ABC):
    """`num_envs` copies of one environment that step together. Final subclasses set the four attributes."""

    spec: EnvSpec
    num_envs: int
    device: torch.device

    @abstractmethod
    def reset(self, seed: int) -> Observation:
        """Start every copy anew; the same seed gives the same episodes."""

    @abstractmethod
    def step(self, actions: Actions) -> Step:
        """Step every copy; one that ends its episode is reset within the same call."""

    @abstractmethod
    def get_state(self) -> State:
        """Return all that is needed to go on exactly here, in this or in another process."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Go on from `state`. Raises EnvironmentFault when that cannot be done exactly."""

    def describe(self) -> dict[str, Any]:
        """Return what a policy needs to know where it is deployed, such as joint names and gains: a tree for JSON."""
        return {}

    def observer(self) -> Observer | None:
        """Return what makes observations of sensor readings, to go with an exported policy; None: they are readings."""
        return None

    def notes(self) -> list[str]:
        """Return lines that a person should read before a long run, such as that it will be slow."""
        return []

    def attach(self, crash: Path) -> None:  # noqa: B027  (most environments leave nothing)
        """Take the run's directory, which may not be there yet, for what is needed to see a failure happen again."""

    def render(self) -> Tensor | None:
        """Return the picture of the first copy, [H, W, 3] uint8, or None when it has none."""
        return None

    def instruct(self, instruction: Instruction) -> bool:
        """Pass on what a person beside a robot says; return whether anybody listens (most environments do not).

        hold: stand still until the next step. fresh: the next command was decided just now, by somebody who sees the
        robot, however long ago the environment looked at it. The others end the episode with the next step, which
        stands still too: as a success or a failure of the task (terminated), or as nothing of the kind (abort:
        truncated).
        """
        return False

    def close(self) -> None:  # noqa: B027  (most environments have nothing to free)
        """Free processes, windows and memory."""
