"""Scripted experts of the robot cell: what to do in a state, and how far there is still to go.

An expert is a workflow that never learns. It can be a run of its own, the teacher of another one
(`training.teacher.expert`), or what a simulated human knows (`rl_lab.human.simulated`). The phase of a task is read
from the state alone, so that an expert can be asked in the middle of what somebody else began.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from rl_lab.core import Actions, Box, Carry, ConfigError, Extras, Observation, Workflow, WorkflowContext


class ScriptedExpert(Workflow):
    """Acts by a script, with noise while it explores.

    Args:
        noise: Standard deviation of what is added to actions while exploring; actions are in [-1, 1].
    """

    num_actions: int
    num_observations: int  # of `state` and `objects` together
    done_at: float = 0.0  # what may remain when the task is done

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        if not noise >= 0.0:
            raise ConfigError(f"noise of {type(self).__name__} must be 0 or more, got {noise}")
        self.noise = noise

    @abstractmethod
    def plan(self, obs: Tensor) -> Tensor:
        """Return what to do, [N, A] in [-1, 1], in states [N, D]."""

    @abstractmethod
    def remaining(self, obs: Tensor) -> Tensor:
        """Return how far there is to go, [N], which falls to `done_at` as the task is done."""

    def initialize(self, context: WorkflowContext) -> None:
        """Refuse an environment that is not the expert's."""
        action = context.spec.action
        if not (isinstance(action, Box) and action.shape == (self.num_actions,)):
            raise ConfigError(
                f"{type(self).__name__} gives {self.num_actions} numbers; {context.spec.id!r} takes {action}"
            )

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Follow the script; `explore` adds noise."""
        actions = self.plan(self.numbers(obs))
        if explore and self.noise > 0.0:
            actions = (actions + self.noise * torch.randn_like(actions)).clamp(-1.0, 1.0)
        return actions, {}, carry

    def numbers(self, obs: Observation) -> Tensor:
        """Return robot and objects in one row, [N, D], of a vector or of a dict."""
        if isinstance(obs, Tensor):
            row = obs
        elif {"state", "objects"} <= obs.keys():
            row = torch.cat([obs["state"], obs["objects"]], dim=-1)
        else:
            raise ConfigError(
                f"{type(self).__name__} reads `state` and `objects`, the environment shows {sorted(obs)}: "
                "environment.env_kwargs.observations=vector or all"
            )
        if row.shape[-1] != self.num_observations:
            raise ConfigError(
                f"{type(self).__name__} reads {self.num_observations} numbers, the environment shows {row.shape[-1]}"
            )
        return row


class InsertionExpert(ScriptedExpert):
    """Brings the peg over the hole, waits until it is there and lowers it; from beside the block it rises first.

    Args:
        noise: Standard deviation of what is added to actions while exploring; actions are in [-1, 1].
    """

    num_actions, num_observations, done_at = 3, 12, 0.08

    STEP = 0.1  # decimetres at an action of 1
    DEEP, HOVER, LOW = -0.25, 0.10, 0.04  # heights of the tip over the mouth: goal, approach, too low to move aside
    ALIGNED, INSIDE, SLOW = 0.012, 0.03, 0.25  # decimetres, and decimetres per second

    def plan(self, obs: Tensor) -> Tensor:
        """Return the move of the target."""
        _, velocity, ahead, way = obs.split(3, dim=-1)
        error, height = way[:, :2].abs().amax(-1), -way[:, 2]
        is_still = velocity[:, :2].abs().amax(-1) < self.SLOW
        lowers = ((error < self.INSIDE) & (height < 0.0)) | ((error < self.ALIGNED) & is_still)
        rises = ~lowers & (height < self.LOW)
        wanted_height = torch.where(lowers, self.DEEP, self.HOVER)
        aside = torch.where(rises.unsqueeze(-1), 0.0, way[:, :2])
        wanted = torch.cat([aside, (wanted_height - height).unsqueeze(-1)], dim=-1)  # from the tip on
        return ((wanted - ahead) / self.STEP).clamp(-1.0, 1.0)

    def remaining(self, obs: Tensor) -> Tensor:
        """Return decimetres to the side and down to where the peg is in."""
        way = obs[:, 9:]
        return way[:, :2].norm(dim=-1) + (-way[:, 2] - self.DEEP).clamp(min=0.0)
