"""Acting at random: the least that learning must beat, and a way to fill a buffer or a dataset."""

from __future__ import annotations

from torch import Tensor

from rl_lab.components.model_actions import ModelActions
from rl_lab.components.observation import action_mask
from rl_lab.core import Actions, Carry, Extras, Observation, Workflow, WorkflowContext


class RandomPolicy(Workflow):
    """Draws actions uniformly, of those that an `action_mask` allows; it needs no component and never learns."""

    def initialize(self, context: WorkflowContext) -> None:
        """Take note of the actions."""
        self.code, self.device = ModelActions(context.spec, "RandomPolicy"), context.device

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Draw actions; evaluation is no different."""
        drawn = self.code.random(len(is_first), self.device, action_mask(obs))
        return self.code.to_environment(drawn), {}, carry
