"""Policies known by their samples: a network that turns noise into actions (Haarnoja et al., 2017), or any density."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from rl_lab.components.array_mlp import fast_forward
from rl_lab.components.mlp import MLP, orthogonal_linear
from rl_lab.components.perception import Perception, reject_ensemble
from rl_lab.components.squashed_heads import squashed_head
from rl_lab.core import ConfigError

ParticlePolicyKind = Literal["implicit", "gaussian", "mixture", "flow"]


class ImplicitPolicy(nn.Module):
    """`tanh(net(features, noise))` with normal noise of as many dimensions as the action.

    It may have as many modes as it needs, and nobody knows its density or its most likely action.

    Args:
        trunk: `components.actor`; reads features and noise.
        action_dim: Numbers per action.
    """

    def __init__(self, trunk: nn.Module, action_dim: int) -> None:
        super().__init__()
        self.trunk, self._dim = trunk, action_dim
        self.layer = orthogonal_linear(int(trunk.output_dim), action_dim, 1.0)  # type: ignore[arg-type]
        self._output = fast_forward(trunk, self.layer)

    def forward(self, features: Tensor, count: int) -> Tensor:
        """Return `count` actions in [-1, 1] for each row of `features`, [R, count, A]; gradients flow through them."""
        noise = torch.randn(len(features), count, self._dim, device=features.device)
        rows = features.unsqueeze(1).expand(-1, count, -1)
        return torch.tanh(self.layer(self.trunk(torch.cat([rows, noise], -1))))

    def sample(self, features: Tensor) -> Tensor:
        """Return an action in [-1, 1] for each row of `features`, without gradient."""
        noise = torch.randn(len(features), self._dim, device=features.device)
        return torch.tanh(self._output(torch.cat([features, noise], -1)))


class DensityPolicy(nn.Module):
    """A squashed Gaussian, mixture or flow as a source of samples; of a mixture only the components learn.

    Args:
        trunk: `components.actor`.
        head: From its features to a distribution over latents.
    """

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head

    def forward(self, features: Tensor, count: int) -> Tensor:
        """Return `count` actions in [-1, 1] for each row of `features`, [R, count, A]; gradients flow through them."""
        rows = self.trunk(features).repeat_interleave(count, 0)
        return torch.tanh(self.head(rows).sample()).unflatten(0, (-1, count))

    def sample(self, features: Tensor) -> Tensor:
        """Return an action in [-1, 1] for each row of `features`."""
        return self(features, 1).squeeze(1)


def particle_policy(
    kind: ParticlePolicyKind, trunk: nn.Module, action_dim: int, *, num_components: int, num_layers: int
) -> ImplicitPolicy | DensityPolicy:
    """Return the policy that `algorithm.policy` names."""
    if kind == "implicit":
        return ImplicitPolicy(trunk, action_dim)
    width = int(trunk.output_dim)  # type: ignore[arg-type]
    head = squashed_head(kind, width, action_dim, num_components=num_components, num_layers=num_layers)
    return DensityPolicy(trunk, head)


def reject_actor_input(kind: ParticlePolicyKind, trunk: nn.Module, perception: Perception, action_dim: int) -> None:
    """Raise when an actor is many, or an MLP does not read what it will be given."""
    reject_ensemble("actor", trunk)
    noise = action_dim if kind == "implicit" else 0
    wanted = perception.output_dim + noise
    if isinstance(trunk, MLP) and trunk.input_dim != wanted:
        raise ConfigError(
            f"components.actor.input_dim: must be {wanted} ({perception.output_dim} features and {noise} of noise, "
            f"algorithm.policy={kind}), not {trunk.input_dim}"
        )
