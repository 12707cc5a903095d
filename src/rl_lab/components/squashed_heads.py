"""From features to a distribution over latents `u` of bounded actions `tanh(u)`: Gaussian, mixture or flow."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from rl_lab.components.flow import Flow, FlowDistribution
from rl_lab.components.mlp import orthogonal_linear
from rl_lab.core import ConfigError, unknown_name
from rl_lab.ops.distributions import Distribution, SquashedGaussian, SquashedMixture

PolicyKind = Literal["gaussian", "mixture", "flow"]
LOG_STD_RANGE = (-5.0, 2.0)  # as in most implementations of SAC
HEAD_GAIN = 0.01  # small, so that the first policy is wide and does not depend on the state


class GaussianPolicyHead(nn.Module):
    """A squashed diagonal Gaussian.

    Args:
        input_dim: Number of features.
        action_dim: Numbers per action.
    """

    def __init__(self, input_dim: int, action_dim: int) -> None:
        super().__init__()
        self.layer = orthogonal_linear(input_dim, 2 * action_dim, HEAD_GAIN)

    def forward(self, features: Tensor) -> SquashedGaussian:
        """Return the distribution over latents."""
        return self.distribution(self.layer(features))

    @staticmethod
    def distribution(output: Tensor) -> SquashedGaussian:
        """Return the distribution that belongs to an output of `layer`."""
        mean, log_std = output.chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*LOG_STD_RANGE))


class MixturePolicyHead(nn.Module):
    """A mixture of squashed diagonal Gaussians, as in the first SAC.

    Args:
        input_dim: Number of features.
        action_dim: Numbers per action.
        num_components: Gaussians in the mixture.
    """

    def __init__(self, input_dim: int, action_dim: int, num_components: int) -> None:
        super().__init__()
        self.action_dim, self.num_components = action_dim, num_components
        self.layer = orthogonal_linear(input_dim, num_components * (1 + 2 * action_dim), 1.0)  # components must differ

    def forward(self, features: Tensor) -> SquashedMixture:
        """Return the distribution over latents."""
        sizes = [self.num_components, 2 * self.num_components * self.action_dim]
        logits, rest = self.layer(features).split(sizes, -1)
        mean, log_std = rest.unflatten(-1, (self.num_components, -1)).chunk(2, -1)
        return SquashedMixture(logits, mean, log_std.clamp(*LOG_STD_RANGE))


class FlowPolicyHead(nn.Module):
    """A squashed normalising flow (RealNVP; Dinh et al., 2017) whose couplings read the features.

    Args:
        input_dim: Number of features.
        action_dim: Numbers per action.
        num_layers: Coupling layers.
    """

    def __init__(self, input_dim: int, action_dim: int, num_layers: int) -> None:
        super().__init__()
        self.flow = Flow(action_dim, input_dim, num_layers)

    def forward(self, features: Tensor) -> Distribution:
        """Return the distribution over latents."""
        return FlowDistribution(self.flow, features)


def squashed_head(
    kind: PolicyKind, input_dim: int, action_dim: int, *, num_components: int, num_layers: int
) -> nn.Module:
    """Return the head that `algorithm.policy` names."""
    if kind == "gaussian":
        return GaussianPolicyHead(input_dim, action_dim)
    if kind == "mixture":
        return MixturePolicyHead(input_dim, action_dim, num_components)
    if kind == "flow":
        return FlowPolicyHead(input_dim, action_dim, num_layers)
    raise ConfigError(unknown_name("algorithm.policy", kind, ("gaussian", "mixture", "flow")))
