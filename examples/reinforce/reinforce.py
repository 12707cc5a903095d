"""REINFORCE (Williams, 1992): an algorithm outside the package, in one file.

From this directory: `lab train +experiment=reinforce_cartpole --config-dir configs --plugin reinforce.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_lab.core import Actions, Batch, Carry, Discrete, Extras, Metrics, Phase, Workflow, WorkflowContext, hook
from rl_lab.ops.returns import discounted_returns


class Reinforce(Workflow):
    """The gradient of log pi weighted by what followed.

    Args:
        gamma: Discount per env step.
    """

    def __init__(self, *, gamma: float = 0.99) -> None:
        super().__init__()
        self.gamma = gamma

    def initialize(self, context: WorkflowContext) -> None:
        assert isinstance(context.spec.action, Discrete)
        trunk = context.components["policy"]
        self.policy = nn.Sequential(trunk, nn.Linear(trunk.output_dim, context.spec.action.n))
        self.optimizer = context.optimizers.build(
            "policy", self.policy.parameters(), lambda params: torch.optim.Adam(params, lr=3e-3)
        )

    def act(
        self, obs: Tensor, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        logits = self.policy(obs)
        noise = -torch.empty_like(logits).exponential_().log() if explore else 0.0  # Gumbel: argmax is a sample
        return (logits + noise).argmax(-1), {}, carry

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        rewards = batch["rewards"]
        no_values = torch.zeros_like(rewards)  # there is no critic to say what comes after a cut
        returns = discounted_returns(rewards, no_values, batch["terminated"], batch["truncated"], gamma=self.gamma)
        advantages = (returns - returns.mean()) / (returns.std() + 1e-8)
        log_probs = self.policy(batch["observations"]).log_softmax(-1).gather(-1, batch["actions"].unsqueeze(-1))
        loss = -(log_probs.squeeze(-1) * advantages).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}
