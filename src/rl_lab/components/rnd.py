"""Random network distillation: what cannot be predicted yet is worth a visit (Burda et al., 2018, arXiv 1810.12894)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.actor_critic import ActorCritic
from rl_lab.components.extension import Extension, Read, shuffled_parts
from rl_lab.components.learner import Learner
from rl_lab.components.mlp import MLP, orthogonal_linear
from rl_lab.components.normalizer import RewardScaler, RunningNormalizer
from rl_lab.components.observation import VectorReader
from rl_lab.core import Batch, Metrics, WorkflowContext
from rl_lab.core.ranges import Count, NonNegative, Positive, UnitInterval

CLIP = 5.0  # of normalised observations, in standard deviations; the paper


class RND(Extension):
    """Adds to the reward of a step how badly a network predicts a random one on what the step led to.

    The error is divided by the running standard deviation of its discounted sum, which goes on through episodes. The
    sum of both rewards has one value function. The optimiser is `rnd`.

    Args:
        weight: Of the intrinsic reward.
        final_weight: What the weight ends with, on a line over the phase; null keeps it.
        key: Which part of a dict observation counts as new; null: all of it.
        hidden_dims: Width of each layer of both networks.
        output_dim: Random numbers to predict.
        activation: Of both networks.
        gamma: Discount of the intrinsic return that the reward is scaled by.
        num_minibatches: Gradient steps of the predictor per rollout.
        learning_rate: Of Adam, when `optimizers.rnd` says nothing.
    """

    def __init__(
        self,
        weight: NonNegative = 1.0,
        final_weight: NonNegative | None = None,
        key: str | None = None,
        hidden_dims: Sequence[int] = (64, 64),
        output_dim: Count = 32,
        activation: str = "relu",
        gamma: UnitInterval = 0.99,
        num_minibatches: Count = 4,
        learning_rate: Positive = 1e-4,
    ) -> None:
        super().__init__()
        self.weight, self.final_weight = weight, weight if final_weight is None else final_weight
        self.key, self.gamma = key, gamma
        self.hidden_dims, self.output_dim, self.activation = list(hidden_dims), output_dim, activation
        self.num_minibatches, self.learning_rate = num_minibatches, learning_rate
        self._metrics: dict[str, Any] = {}

    def bind(self, context: WorkflowContext, policy: ActorCritic, read: Read) -> None:
        """Build the two networks and the optimiser."""
        self._read = VectorReader(context.spec.observation, self.key, "components.rnd")
        self.normalizer = RunningNormalizer((self._read.dim,), clip=CLIP, ranks=context.ranks)
        self.scaler = RewardScaler(context.num_envs, self.gamma, ranks=context.ranks)
        self.target, self.predictor = self._network().requires_grad_(False), self._network()
        self.to(context.device)
        self._learner = Learner(context, "rnd", self.predictor.parameters(), lr=self.learning_rate)

    def _network(self) -> nn.Sequential:
        trunk = MLP(self._read.dim, self.hidden_dims, self.activation)
        return nn.Sequential(trunk, orthogonal_linear(trunk.output_dim, self.output_dim, 1.0))

    def rewards(self, batch: Batch, rewards: Tensor, progress: float) -> Tensor:
        """Return the rewards with the intrinsic ones added."""
        seen = self._read(batch["final_observations"])
        self.normalizer.update(seen.flatten(0, 1))
        errors = self._errors(self.normalizer(seen))
        self.scaler.update(errors, torch.zeros_like(batch["terminated"]))
        intrinsic = self.scaler(errors)
        weight = self.weight + (self.final_weight - self.weight) * min(1.0, progress)
        self._metrics = {"intrinsic_reward": intrinsic.mean(), "rnd_weight": weight}
        return rewards + weight * intrinsic

    def learn(self, batch: Batch, policy: ActorCritic) -> Metrics:
        """Train the predictor on a rollout once."""
        seen = self.normalizer(self._read(batch["final_observations"])).flatten(0, 1)
        losses = []
        for part in shuffled_parts(len(seen), 1, self.num_minibatches, seen.device):
            loss = self._errors(seen[part]).mean()
            self._learner.descend(loss)
            losses.append(loss.detach())
        return {**self._metrics, "rnd_loss": torch.stack(losses).mean()}

    def _errors(self, seen: Tensor) -> Tensor:
        return (self.predictor(seen) - self.target(seen)).square().mean(-1)

    def get_state(self) -> dict[str, Any]:
        """Return the discounted intrinsic returns, one per environment."""
        return {"returns": self.scaler.returns}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.scaler.returns.copy_(state["returns"])
