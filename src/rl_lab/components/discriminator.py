"""A motion prior: a judge of whether a step looks like the reference (Peng et al., 2021, arXiv 2104.02180)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_lab.components.actor_critic import ActorCritic
from rl_lab.components.extension import Extension, Read
from rl_lab.components.learner import Learner
from rl_lab.components.mlp import MLP, orthogonal_linear
from rl_lab.components.normalizer import RunningNormalizer
from rl_lab.components.observation import VectorReader
from rl_lab.core import Batch, LabError, Metrics, Observation, WorkflowContext
from rl_lab.core.ranges import Count, NonNegative


class Discriminator(Extension):
    """Tells steps (s, s') of the reference (+1) from those of the policy (-1), least squares; pays for looking real.

    The reward becomes `task_weight r + style_weight style_scale max(0, 1 - (d - 1)^2 / 4)`. The network reads s and the
    change s' - s, each normalised: between s and s' a motion is a small difference, which the gradient penalty, being
    on what the network reads, would hide. Steps of the policy are kept for replay. The optimiser is `discriminator`.

    Args:
        key: Which part of a dict observation is judged; null: all of it.
        task_weight: Of the environment's reward.
        style_weight: Of the style reward.
        style_scale: The style reward of a step that looks perfect.
        gradient_penalty: Weight of the squared norm of the gradient by the input.
        trunk_decay: Weight decay of the layers, as of Adam (half of it times the squared weights is in the loss).
        head_decay: Weight decay of the last, linear one.
        hidden_dims: Width of each layer.
        activation: Of the layers.
        replay_capacity: Steps of the policy to keep.
        learning_rate: Of Adam, when `optimizers.discriminator` says nothing.
    """

    def __init__(
        self,
        key: str | None = "amp",
        task_weight: NonNegative = 0.3,
        style_weight: NonNegative = 0.7,
        style_scale: NonNegative = 2.0,
        gradient_penalty: NonNegative = 10.0,
        trunk_decay: NonNegative = 0.0,
        head_decay: NonNegative = 0.0,
        hidden_dims: Sequence[int] = (1024, 512),
        activation: str = "leaky_relu",
        replay_capacity: Count = 100_000,
        learning_rate: NonNegative = 1e-4,
    ) -> None:
        super().__init__()
        self.key, self.task_weight, self.style_weight, self.style_scale = key, task_weight, style_weight, style_scale
        self.gradient_penalty, self.hidden_dims, self.activation = gradient_penalty, list(hidden_dims), activation
        self.replay_capacity, self.learning_rate = replay_capacity, learning_rate
        self.trunk_decay, self.head_decay = trunk_decay, head_decay
        self._metrics: dict[str, Any] = {}
        self._kept, self._next = 0, 0  # steps in the replay, and where the next one goes
        self._replay: Tensor  # [capacity, 2, D]

    def bind(self, context: WorkflowContext, policy: ActorCritic, read: Read) -> None:
        """Build the network, its optimiser and an empty replay."""
        self._read = VectorReader(context.spec.observation, self.key, "components.discriminator")
        self.normalizer = RunningNormalizer((2, self._read.dim), ranks=context.ranks)
        self.trunk = MLP(2 * self._read.dim, self.hidden_dims, self.activation)
        self.head = orthogonal_linear(self.trunk.output_dim, 1, 1.0)
        self.to(context.device)
        parameters = (*self.trunk.parameters(), *self.head.parameters())
        self._learner = Learner(context, "discriminator", parameters, lr=self.learning_rate)
        self._replay = torch.zeros(self.replay_capacity, 2, self._read.dim, device=context.device)

    def steps(self, obs: Observation, next_obs: Observation) -> Tensor:
        """Return (s, s' - s) [..., 2, D] of what is judged."""
        here = self._read(obs)
        return torch.stack((here, self._read(next_obs) - here), -2)

    def forward(self, normalized: Tensor) -> Tensor:
        """Return the judgement [...] of normalised steps [..., 2, D]."""
        return self.head(self.trunk(normalized.flatten(-2))).squeeze(-1)

    def rewards(self, batch: Batch, rewards: Tensor, progress: float) -> Tensor:
        """Return the mixture of task and style."""
        steps = self.steps(batch["observations"], batch["final_observations"])
        style = self.style_scale * (1.0 - 0.25 * (self(self.normalizer(steps)) - 1.0).square()).clamp_min(0.0)
        self._metrics = {"style_reward": style.mean(), "task_reward": rewards.mean()}
        return self.task_weight * rewards + self.style_weight * style

    def learn(self, batch: Batch, policy: ActorCritic) -> Metrics:
        """Keep the steps of a rollout for replay, the newest where they are too many."""
        steps = self.steps(batch["observations"], batch["final_observations"]).flatten(0, 1)[-self.replay_capacity :]
        places = torch.arange(self._next, self._next + len(steps), device=steps.device) % self.replay_capacity
        self._replay.index_copy_(0, places, steps)
        self._next = (self._next + len(steps)) % self.replay_capacity
        self._kept = min(self._kept + len(steps), self.replay_capacity)
        return self._metrics

    def fit(self, reference: Tensor) -> Metrics:
        """Take a gradient step on reference steps [B, 2, D] and as many of the policy's, then merge the statistics."""
        if self._kept == 0:
            raise LabError("update_discriminator has no steps of the policy yet: it comes after update_policy")
        drawn = torch.randint(self._kept, (len(reference),), device=reference.device)
        steps = torch.cat((reference, self._replay[drawn]))
        metrics = self.losses(*self.normalizer(steps).chunk(2))
        loss = metrics["discriminator_loss"] + self.gradient_penalty * metrics["gradient_penalty"]
        self._learner.descend(loss + self._decay() if self.trunk_decay or self.head_decay else loss)
        self.normalizer.update(steps)
        return {name: value.detach() for name, value in metrics.items()}

    def _decay(self) -> Tensor:
        """Return the term whose gradient is weight decay, of which trunk and head have one each."""
        trunk, head = (
            torch.stack([weights.square().sum() for weights in part.parameters()]).sum()
            for part in (self.trunk, self.head)
        )
        return 0.5 * (self.trunk_decay * trunk + self.head_decay * head)

    def losses(self, reference: Tensor, policy: Tensor) -> dict[str, Tensor]:
        """Return the least-squares loss, the gradient penalty and the mean judgements of normalised steps."""
        reference = reference.detach().requires_grad_()
        real, fake = self(reference), self(policy)
        (slope,) = torch.autograd.grad(real.sum(), reference, create_graph=True)
        return {
            "discriminator_loss": 0.5 * ((real - 1.0).square().mean() + (fake + 1.0).square().mean()),
            "gradient_penalty": slope.square().sum((-2, -1)).mean(),
            "judged_reference": real.mean(),
            "judged_policy": fake.mean(),
        }

    def get_state(self) -> dict[str, Any]:
        """Return the replay."""
        return {"replay": self._replay[: self._kept], "next": self._next}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._kept, self._next = len(state["replay"]), int(state["next"])
        self._replay[: self._kept] = state["replay"]
