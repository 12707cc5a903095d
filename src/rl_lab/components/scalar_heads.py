"""Heads that predict one number of a state: rewards and values, and whether an episode goes on."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.layers import STYLE, LayerStyle, Stack, dense
from rl_lab.components.precision import in_float32
from rl_lab.core import ConfigError, unknown_name
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive
from rl_lab.ops.symlog import expectation, symexp, symlog, two_hot_loss

ScalarKind = Literal["gaussian", "mse", "symlog_two_hot", "symexp_two_hot"]
KINDS = ("gaussian", "mse", "symlog_two_hot", "symexp_two_hot")
SQUARED = {"gaussian": 0.5, "mse": 1.0}  # how much of the squared error is the loss


class ScalarHead(nn.Module):
    """Predicts a number as the mean of a Gaussian, or of a distribution over bins.

    Args:
        units: Width of every layer.
        num_layers: Layers before the output.
        style: Of the layers.
        kind: gaussian (PlaNet, DreamerV1, V2): unit variance, which is half the squared error; mse: the whole of it.
            symlog_two_hot (DreamerV3, 2023): bins spread evenly over squashed numbers. symexp_two_hot (2024): over the
            numbers themselves, ever wider apart.
        num_bins: Of the distributions, an odd number.
        limit: Squashed number at the outermost bins.
        scale: Of the output's initial weights; 0 predicts exactly 0 at first.
    """

    bins: Tensor

    def __init__(
        self,
        units: Count,
        num_layers: Natural,
        style: LayerStyle = STYLE,
        *,
        kind: ScalarKind = "symexp_two_hot",
        num_bins: Count = 255,
        limit: Positive = 20.0,
        scale: NonNegative = 0.0,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ConfigError(unknown_name("kind of head", kind, KINDS))
        if num_bins < 3 or num_bins % 2 == 0:
            raise ConfigError(f"num_bins: {num_bins} bins (3, 5, 7, ...: as many below 0 as above, and one at 0)")
        self.units, self.num_layers, self.style = units, num_layers, style
        self.kind, self.scale = kind, scale
        self.output_dim = 1 if kind in SQUARED else num_bins
        self.register_buffer("bins", make_bins(kind, num_bins, limit), persistent=False)

    def bind(self, feature_dim: int) -> None:
        """Make the layers."""
        assert not self._modules, "a head is bound once"
        self.trunk = Stack(feature_dim, self.units, self.num_layers, self.style)
        self.out = dense(self.trunk.output_dim, self.output_dim, self.style.init, self.scale)

    def forward(self, features: Tensor) -> Tensor:
        """Return outputs [..., k] of features [..., F]: a mean, or logits of the bins; always in float32."""
        return in_float32(self.out, self.trunk(features))

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the numbers [...] that outputs stand for."""
        if self.kind in SQUARED:
            return outputs.squeeze(-1)
        mean = expectation(outputs, self.bins)
        return symexp(mean) if self.kind == "symlog_two_hot" else mean

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [...] of targets [...], into which no gradient flows."""
        wanted = targets.detach()
        if self.kind in SQUARED:
            return SQUARED[self.kind] * (outputs.squeeze(-1) - wanted).square()
        return two_hot_loss(outputs, symlog(wanted) if self.kind == "symlog_two_hot" else wanted, self.bins)


class ContinueHead(nn.Module):
    """Predicts the probability that an episode goes on.

    Args:
        units: Width of every layer.
        num_layers: Layers before the output.
        style: Of the layers.
    """

    def __init__(
        self,
        units: Count,
        num_layers: Natural,
        style: LayerStyle = STYLE,
    ) -> None:
        super().__init__()
        self.units, self.num_layers, self.style = units, num_layers, style

    def bind(self, feature_dim: int) -> None:
        """Make the layers."""
        assert not self._modules, "a head is bound once"
        self.trunk = Stack(feature_dim, self.units, self.num_layers, self.style)
        self.out = dense(self.trunk.output_dim, 1, self.style.init)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [...] of features [..., F], in float32."""
        return in_float32(self.out, self.trunk(features)).squeeze(-1)

    @staticmethod
    def losses(logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropies [...] to targets in [0, 1]."""
        return F.binary_cross_entropy_with_logits(logits, targets.detach(), reduction="none")

    @staticmethod
    def probability(logits: Tensor) -> Tensor:
        """Return the probabilities [...] that logits stand for."""
        return logits.sigmoid()


def make_bins(kind: ScalarKind, num_bins: int, limit: float) -> Tensor:
    """Return an odd number of bins that mirror each other exactly: evenly spaced, or the symexp of that."""
    below = torch.linspace(-limit, 0.0, num_bins // 2 + 1, dtype=torch.float64)
    below = (symexp(below) if kind == "symexp_two_hot" else below).float()
    return torch.cat([below, -below[:-1].flip(0)])


def value_loss(
    critic: ScalarHead, slow: ScalarHead, features: Tensor, returns: Tensor, weights: Tensor, *, slow_weight: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of a critic towards returns and, a little, towards the slow critic; and the critic's values."""
    outputs = critic(features)
    losses = critic.losses(outputs, returns.detach())
    if slow_weight > 0.0:
        with torch.no_grad():
            expected = slow.mean(slow(features))
        losses = losses + slow_weight * critic.losses(outputs, expected)
    return (weights * losses).mean(), critic.mean(outputs.detach())
