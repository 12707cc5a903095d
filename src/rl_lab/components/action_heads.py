"""From features to a distribution over actions, one head per kind of action space."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.mlp import orthogonal_linear
from rl_lab.core import Box, ConfigError, Discrete, MultiDiscrete, flat_dim
from rl_lab.ops.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    masked_logits,
)

HEAD_GAIN = 0.01  # small, so that the first policy is nearly uniform (Andrychowicz et al., 2021)
LOG_STD_RANGE = (-5.0, 2.0)  # of a log-std that a network puts out


class ActionHead(nn.Module):
    """The policy samples latents; the environment gets `to_environment(latents)`, which for choices is the same."""

    @property
    @abstractmethod
    def layer(self) -> nn.Linear | None:
        """Return the only layer between features and distribution, or None when there are more."""

    is_differentiable = True  # whether the distribution has its gradients written out

    @abstractmethod
    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        """Return the distribution over latents, without the actions that `mask` forbids."""

    @abstractmethod
    def distribution(self, output: Tensor, mask: Tensor | None) -> Distribution:
        """Return the distribution that belongs to an output of `layer`."""

    def to_environment(self, latents: Tensor) -> Tensor:
        """Return the actions that the environment takes."""
        return latents


class CategoricalHead(ActionHead):
    """One choice, or several independent ones."""

    def __init__(self, input_dim: int, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        self.space = space
        self.logits = orthogonal_linear(input_dim, flat_dim(space), HEAD_GAIN)

    @property
    def layer(self) -> nn.Linear:
        """Return the layer that puts out logits."""
        return self.logits

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        """Return a (multi-)categorical."""
        return self.distribution(F.linear(features, self.logits.weight, self.logits.bias), mask)

    def distribution(self, output: Tensor, mask: Tensor | None) -> Distribution:
        """Return a (multi-)categorical with these logits."""
        logits = masked_logits(output, mask)
        return Categorical(logits) if isinstance(self.space, Discrete) else MultiCategorical(logits, self.space.nvec)


class GaussianHead(ActionHead):
    """A diagonal Gaussian. Its samples are clamped to the action bounds, or squashed into them by tanh.

    Args:
        input_dim: Number of features.
        space: The action space.
        initial_log_std: Logarithm of the first standard deviation.
        state_dependent_std: Whether the network puts out the standard deviation, or it is one parameter per action.
        squash: Whether tanh maps the samples into the bounds, which must then be finite.
    """

    def __init__(
        self, input_dim: int, space: Box, *, initial_log_std: float, state_dependent_std: bool, squash: bool
    ) -> None:
        super().__init__()
        if squash and not math.isfinite(space.high - space.low):
            raise ConfigError("algorithm.squash_actions: the action space has no finite bounds to squash into")
        self.space, self.squash, dim = space, squash, flat_dim(space)
        self.is_differentiable = not squash  # the entropy of a squashed Gaussian is an estimate
        self.mean = orthogonal_linear(input_dim, dim, HEAD_GAIN)
        self.std_layer = orthogonal_linear(input_dim, dim, HEAD_GAIN) if state_dependent_std else None
        self.log_std = nn.Parameter(torch.full((dim,), float(initial_log_std)))

    @property
    def layer(self) -> nn.Linear | None:
        """Return the layer that puts out means, when the standard deviation does not depend on the state."""
        return self.mean if self.std_layer is None else None

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        """Return a Gaussian, plain or squashed; its standard deviation is `exp(log_std)` times what the state adds."""
        log_std: Tensor = self.log_std
        if self.std_layer is not None:
            log_std = (log_std + self.std_layer(features)).clamp(*LOG_STD_RANGE)
        return (SquashedGaussian if self.squash else DiagonalGaussian)(self.mean(features), log_std)

    def distribution(self, output: Tensor, mask: Tensor | None) -> Distribution:
        """Return a Gaussian with this mean and the standard deviation that does not depend on the state."""
        return (SquashedGaussian if self.squash else DiagonalGaussian)(output, self.log_std)

    def to_environment(self, latents: Tensor) -> Tensor:
        """Return actions within the bounds, in the shape of the action space."""
        low, high = self.space.low, self.space.high
        actions = (latents.tanh() + 1.0) * (0.5 * (high - low)) + low if self.squash else latents.clamp(low, high)
        return actions if len(self.space.shape) == 1 else actions.reshape(*latents.shape[:-1], *self.space.shape)


def action_head(
    input_dim: int,
    space: Box | Discrete | MultiDiscrete,
    *,
    initial_log_std: float,
    state_dependent_std: bool,
    squash: bool,
) -> ActionHead:
    """Return the head that fits the action space."""
    if not isinstance(space, Box):
        return CategoricalHead(input_dim, space)
    return GaussianHead(
        input_dim, space, initial_log_std=initial_log_std, state_dependent_std=state_dependent_std, squash=squash
    )
