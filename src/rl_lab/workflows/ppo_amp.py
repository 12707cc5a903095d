"""PPO with an adversarial motion prior (Peng et al., 2021, https://arxiv.org/abs/2104.02180).

A discriminator learns to tell steps of reference motions from those of the policy, and what it takes for real is part
of the policy's reward: the task says what to do, the reference how it should look. Everything else is PPO.
"""

from __future__ import annotations

from typing import ClassVar

from rl_lab.components.discriminator import Discriminator
from rl_lab.core import ConfigError, Metrics, Phase, WorkflowContext, hook
from rl_lab.workflows.ppo import PPO


class PPOAMP(PPO):
    """PPO whose reward has a part for style; components: those of PPO, and discriminator; buffers: motions.

    Its options are those of PPO. `buffers.motions` is any buffer that brings steps of the reference.
    """

    EXTENSIONS: ClassVar[tuple[str, ...]] = ("discriminator", *PPO.EXTENSIONS)  # bonuses of others are not the task's

    def initialize(self, context: WorkflowContext) -> None:
        """Build PPO with its discriminator, and find the reference motions."""
        super().initialize(context)
        self.motions = context.buffers["motions"]
        if not isinstance(context.components["discriminator"], Discriminator):
            raise ConfigError("components.discriminator: needs a rl_lab.components.discriminator.Discriminator")

    @property
    def discriminator(self) -> Discriminator:
        """Return the judge of motions."""
        return self.extensions["discriminator"]  # type: ignore[return-value]

    @hook(batch=False)
    def update_discriminator(self, *, phase: Phase) -> Metrics:
        """Take a gradient step on a batch of reference steps and as many that the policy has made lately."""
        batch = self.motions.sample()
        return self.discriminator.fit(self.discriminator.steps(batch["observations"], batch["next_observations"]))
