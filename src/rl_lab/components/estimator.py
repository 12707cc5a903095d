"""An estimator beside the policy: it learns to tell what sensors do not (speed, contact), for the actor to see.

As in Ji et al., 2022 (arXiv 2202.05481): supervised, trained together with the policy, by an optimiser of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_lab.components.actor_critic import ActorCritic, Inputs
from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.extension import Extension, Read, shuffled_parts
from rl_lab.components.learner import Learner
from rl_lab.components.mlp import MLP, orthogonal_linear
from rl_lab.core import Batch, ConfigError, Metrics, WorkflowContext, flat_dim, leaves_of, tree_map, unknown_name
from rl_lab.core.ranges import Count, Positive

PATH = "components.estimator"


class Estimator(Extension):
    """Reads one key of a dict observation, estimates entries of another, and puts the estimate after what it read.

    The trunk that reads `reads` is as much wider. Both sides are normalised where observations are. No gradient of the
    policy reaches the estimator: it descends the mean squared error. The optimiser is `estimator`.

    Args:
        target: Key of the observation that holds the truth, which the actor does not read.
        entries: Numbers of its entries to estimate; null: all of them.
        reads: Key that the actor reads; the estimate is appended to it.
        hidden_dims: Width of each layer.
        activation: Of the layers.
        num_epochs: Passes over each rollout.
        num_minibatches: Gradient steps per pass.
        learning_rate: Of Adam, when `optimizers.estimator` says nothing.
    """

    def __init__(
        self,
        target: str,
        entries: Sequence[int] | None = None,
        reads: str = "actor",
        hidden_dims: Sequence[int] = (128, 64),
        activation: str = "elu",
        num_epochs: Count = 5,
        num_minibatches: Count = 4,
        learning_rate: Positive = 1e-3,
    ) -> None:
        super().__init__()
        self.target, self.reads, self.entries = target, reads, None if entries is None else list(entries)
        self.hidden_dims, self.activation = list(hidden_dims), activation
        self.num_epochs, self.num_minibatches, self.learning_rate = num_epochs, num_minibatches, learning_rate
        self._index: Tensor  # of the entries

    def bind(self, context: WorkflowContext, policy: ActorCritic, read: Read) -> None:
        """Build the network and its optimiser; refuse keys and widths that do not fit."""
        leaves = leaves_of(context.spec.observation)
        for option, key in (("target", self.target), ("reads", self.reads)):
            if key not in leaves:
                raise ConfigError(f"{PATH}.{option}: " + unknown_name("observation", key, leaves))
        if not isinstance(policy.actor, DictEncoder) or policy.encoder is not None:
            raise ConfigError(f"{PATH}: components.actor must be a dict_encoder, and components.encoder absent")
        if self.target in policy.actor.encoders:
            raise ConfigError(
                f"{PATH}.target: components.actor reads {self.target!r} itself, so nothing is to estimate"
            )
        size, width = flat_dim(leaves[self.target]), flat_dim(leaves[self.reads])
        entries = list(range(size)) if self.entries is None else self.entries
        if not entries or any(not 0 <= entry < size for entry in entries):
            raise ConfigError(f"{PATH}.entries: must be numbers of 0 to {size - 1}, not {self.entries}")
        self._reject_widths(policy, width + len(entries))
        self._index = torch.tensor(entries, device=context.device)
        trunk = MLP(width, self.hidden_dims, self.activation)
        self.network = nn.Sequential(trunk, orthogonal_linear(trunk.output_dim, len(entries), 1.0)).to(context.device)
        self._learner = Learner(context, "estimator", self.network.parameters(), lr=self.learning_rate)

    def _reject_widths(self, policy: ActorCritic, width: int) -> None:
        """Raise when a trunk does not expect the estimate beside what it reads."""
        for name, trunk in (("actor", policy.actor), ("critic", policy.critic)):
            encoder = (
                trunk.encoders[self.reads] if isinstance(trunk, DictEncoder) and self.reads in trunk.encoders else None
            )
            if isinstance(encoder, MLP) and encoder.input_dim != width:
                path = f"components.{name}.encoders.{self.reads}.input_dim"
                raise ConfigError(f"{path}: must be {width} (with the estimate), not {encoder.input_dim}")

    @torch.no_grad()
    def inputs(self, inputs: Inputs) -> Inputs:
        """Append the estimate to what the actor reads."""
        x, mask = inputs
        seen = x[self.reads]
        return {**x, self.reads: torch.cat((seen, self.network(seen)), -1)}, mask

    def learn(self, batch: Batch, policy: ActorCritic) -> Metrics:
        """Descend the squared error over a rollout; return it, and the share of variance that was left unexplained."""
        with torch.no_grad():
            x: Mapping[str, Tensor] = policy.inputs(tree_map(lambda leaf: leaf.flatten(0, 1), batch["observations"]))[0]
            seen, truth = x[self.reads], x[self.target].index_select(-1, self._index)
        losses = []
        for part in shuffled_parts(len(seen), self.num_epochs, self.num_minibatches, seen.device):
            loss = (self.network(seen[part]) - truth[part]).square().mean()
            self._learner.descend(loss)
            losses.append(loss.detach())
        mean, variance = torch.stack(losses).mean(), truth.var(0, correction=0).mean()
        return {"estimator_loss": mean, "estimator_unexplained": mean / variance.clamp_min(1e-8)}
