"""Several networks of one shape as one batched network: N critics cost one matrix product per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_lab.components.mlp import activation_module
from rl_lab.core.ranges import Count, UnitInterval


def chosen_members(members: Tensor | None, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Return what belongs to some `members` [m] of parameters [members, ...]; None: all of it."""
    if members is None:
        return parameters
    return tuple(parameter.index_select(0, members) for parameter in parameters)


class EnsembleLinear(nn.Module):
    """One linear layer per member, with orthogonal weights and zero biases.

    Args:
        num_members: Layers side by side.
        input_dim: Numbers each of them reads.
        output_dim: Numbers each of them puts out.
        gain: Scale of the weights.
    """

    def __init__(self, num_members: int, input_dim: int, output_dim: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_members, input_dim, output_dim))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, output_dim))
        for member in self.weight:
            nn.init.orthogonal_(member, gain)

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Return [members, B, output_dim] of inputs [members, B, input_dim], by some `members` [m] or all."""
        weight, bias = chosen_members(members, self.weight, self.bias)
        if torch.compiler.is_compiling():  # the sum is then fused with what follows
            return torch.bmm(x, weight) + bias
        return torch.baddbmm(bias, x, weight)


class EnsembleNorm(nn.Module):
    """Layer normalisation, with a scale and a shift for each member."""

    def __init__(self, num_members: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.ones(num_members, 1, dim))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, dim))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the normalised [members, B, dim], by some `members` [m] or all."""
        weight, bias = chosen_members(members, self.weight, self.bias)
        return torch.addcmul(bias, nn.functional.layer_norm(x, (self.dim,)), weight)


class EnsembleMLP(nn.Module):
    """`num_members` independent multilayer perceptrons over the same input; the last layer is the output.

    Args:
        input_dim: Numbers read; a critic reads features and the action.
        hidden_dims: Width of each layer.
        num_members: Networks side by side: 1 for one critic, 2 for twins, more for ensembles.
        activation: A name of `components.mlp.ACTIVATIONS`.
        layer_norm: Normalise before each activation.
        dropout: Share of each layer's outputs that training drops.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int] = (256, 256),
        num_members: Count = 2,
        activation: str = "relu",
        layer_norm: bool = False,
        dropout: UnitInterval = 0.0,
    ) -> None:
        super().__init__()
        self.num_members, self.input_dim = num_members, input_dim
        layers: list[nn.Module] = []
        width = input_dim
        for hidden in hidden_dims:
            layers.append(EnsembleLinear(num_members, width, hidden, math.sqrt(2.0)))
            if dropout:
                layers.append(nn.Dropout(dropout))  # before the norm, as in DroQ
            if layer_norm:
                layers.append(EnsembleNorm(num_members, hidden))
            layers.append(activation_module(activation))
            width = hidden
        self.layers = nn.Sequential(*layers)
        self.output_dim = width

    def forward(self, x: Tensor) -> Tensor:
        """Return features [members, B, output_dim] of inputs [B, input_dim]."""
        return self.layers(x.expand(self.num_members, *x.shape))
