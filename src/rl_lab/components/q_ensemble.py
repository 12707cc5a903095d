"""Critics of actions in latent states: an ensemble as one batched network, of which any subset can be asked."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.ensemble import EnsembleLinear, EnsembleNorm
from rl_lab.components.latent_encoder import TDMPC2_STYLE
from rl_lab.components.layers import LayerStyle, initialize
from rl_lab.components.learner import frozen
from rl_lab.components.mlp import activation_module
from rl_lab.components.precision import in_float32
from rl_lab.components.return_scale import HIGH, LOW, Scale, quantile
from rl_lab.components.scalar_heads import ScalarHead, ScalarKind
from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count, NonNegative, Positive, UnitInterval

Reduction = Literal["min", "mean"]


class QEnsemble(ScalarHead):
    """Critics that each predict the value of an action, as a number or as a distribution over bins.

    Args:
        units: Width of every layer.
        num_layers: Layers before the output.
        style: Of the layers.
        num_members: Critics.
        subset_size: Critics whose values are asked for at a time, drawn at random (TD-MPC2: 2); null: all.
        kind: gaussian (TD-MPC: squared errors), symlog_two_hot (TD-MPC2) or symexp_two_hot.
        num_bins: Of the distributions, an odd number.
        limit: Squashed number at the outermost bins.
        dropout: Share of the first layer's outputs that learning drops (TD-MPC2).
        tanh_first: Whether the first layer is normalised and seen through tanh, whatever the style (TD-MPC).
        scale: Of the outputs' initial weights; 0 predicts exactly 0 at first.
    """

    def __init__(
        self,
        units: Count,
        num_layers: Count = 2,
        style: LayerStyle = TDMPC2_STYLE,
        *,
        num_members: Count = 5,
        subset_size: Count | None = 2,
        kind: ScalarKind = "symlog_two_hot",
        num_bins: Count = 101,
        limit: Positive = 10.0,
        dropout: UnitInterval = 0.01,
        tanh_first: bool = False,
        scale: NonNegative = 0.0,
    ) -> None:
        super().__init__(units, num_layers, style, kind=kind, num_bins=num_bins, limit=limit, scale=scale)
        if subset_size is not None and subset_size > num_members:
            raise ConfigError(f"components.critic.subset_size: {subset_size} of {num_members} critics (num_members)")
        self.num_members, self.subset_size = num_members, subset_size
        self.dropout, self.tanh_first = dropout, tanh_first

    def bind(self, feature_dim: int) -> None:
        """Make the layers."""
        assert not self._modules, "critics are bound once"
        self.layers = nn.ModuleList()
        width = feature_dim
        for index in range(self.num_layers):
            self.layers.append(self._layer(width, is_squashed=self.tanh_first and index == 0))
            width = self.units
        self.last = self._linear(width, self.output_dim, self.scale)

    def _layer(self, input_dim: int, *, is_squashed: bool) -> QLayer:
        has_norm, activation = (True, "tanh") if is_squashed else (self.style.norm != "none", self.style.activation)
        norm = EnsembleNorm(self.num_members, self.units) if has_norm else None
        return QLayer(self._linear(input_dim, self.units, 1.0), norm, activation_module(activation))

    def _linear(self, input_dim: int, output_dim: int, scale: float) -> EnsembleLinear:
        layer = EnsembleLinear(self.num_members, input_dim, output_dim)
        for member in layer.weight:
            initialize(member, input_dim, output_dim, self.style.init, scale)
        return layer

    def forward(self, features: Tensor, members: Tensor | None = None, learns: bool = False) -> Tensor:
        """Return outputs [M, ..., k] of features [..., F] by some `members` [M] or all, in float32.

        Something is dropped only where it `learns`.
        """
        rows = features.reshape(-1, features.shape[-1])
        x = rows.expand(self.num_members if members is None else len(members), *rows.shape)
        for index, layer in enumerate(self.layers):
            x = layer(x, members, self.dropout if learns and index == 0 else 0.0)
        outputs = in_float32(self.last, x, members)
        return outputs.view(len(x), *features.shape[:-1], self.output_dim)

    def value(self, features: Tensor, reduction: Reduction, *, learns: bool = False, is_frozen: bool = False) -> Tensor:
        """Return what some critics, drawn at random, give to features [..., F]: the least of it, or the mean, [...].

        By `is_frozen` critics gradients flow to the features only.
        """
        members = None
        if self.subset_size is not None:
            members = torch.rand(self.num_members, device=features.device).topk(self.subset_size).indices
        values = self.mean((frozen(self) if is_frozen else self)(features, members, learns))
        return values.amin(0) if reduction == "min" else values.mean(0)


class QLayer(nn.Module):
    """Linear, normalisation and activation of every critic.

    Args:
        linear: Of all critics.
        norm: The same; None: there is none.
        activation: Applied last.
    """

    def __init__(self, linear: EnsembleLinear, norm: EnsembleNorm | None, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.norm, self.activation = linear, norm, activation

    def forward(self, x: Tensor, members: Tensor | None, dropout: float) -> Tensor:
        """Return [M, B, units] of inputs [M, B, n] by some `members` [M] or all."""
        x = self.linear(x, members)
        if dropout:
            x = F.dropout(x, dropout)
        return self.activation(x if self.norm is None else self.norm(x, members))


class ValueScale(Scale):
    """The spread of values, by which TD-MPC2 divides them: follows the range of 5 to 95 % by a moving average.

    Args:
        rate: Share of a new batch in the average.
    """

    value: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("value", torch.ones(()))

    @torch.no_grad()
    def forward(self, values: Tensor) -> Tensor:
        """Take values [n] into account; return the scale, which never begins below 1."""
        ordered = self.ranks.cat(values.detach()).float().sort().values
        spread = (quantile(ordered, HIGH) - quantile(ordered, LOW)).clamp(min=1.0)
        self.value.lerp_(spread, self.rate)
        return self.value.clone()
