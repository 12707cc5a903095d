"""Layers of world models, with the normalisations and initial weights that were published with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.mlp import activation_module
from rl_lab.core import ConfigError

Norm = Literal["none", "layer", "layer_1e-5", "rms"]
Init = Literal["glorot", "fan_in", "fan_avg", "orthogonal", "normal_0.02"]
TRUNCATION = 1.1368  # a normal cut at two standard deviations has 1 / 1.1368 of its spread
LAYER_NORM_EPS = {"layer": 1e-3, "layer_1e-5": 1e-5}
RMS_NORM_EPS = 1e-4


@dataclass(frozen=True)
class LayerStyle:
    """How the layers of a network look: as in DreamerV3 (2024) unless said otherwise.

    Args:
        activation: A name of `components.mlp.ACTIVATIONS`.
        norm: none, layer (epsilon 1e-3, Dreamer), layer_1e-5 (TD-MPC2) or rms, before each activation.
        init: glorot, fan_in, fan_avg, orthogonal (TD-MPC) or normal_0.02 (TD-MPC2).
    """

    activation: str = "silu"
    norm: Norm = "rms"
    init: Init = "fan_in"


STYLE = LayerStyle()


class RMSNorm(nn.Module):
    """Divides by the root mean square, in float32, and scales; nothing is subtracted or added.

    Args:
        dim: Numbers that are normalised together.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled `x`."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, RMS_NORM_EPS).to(x.dtype)


def norm_layer(kind: Norm, dim: int) -> nn.Module:
    """Return the normalisation of this kind over the last dimension."""
    if kind == "rms":
        return RMSNorm(dim)
    return nn.LayerNorm(dim, LAYER_NORM_EPS[kind]) if kind in LAYER_NORM_EPS else nn.Identity()


@torch.no_grad()
def initialize(weight: Tensor, fan_in: int, fan_out: int, init: Init, scale: float = 1.0) -> None:
    """Fill a weight: `glorot` uniformly, `fan_*` by a normal that is cut at two standard deviations."""
    if scale == 0.0:
        weight.zero_()
    elif init == "orthogonal":
        nn.init.orthogonal_(weight, scale)
    elif init == "normal_0.02":
        nn.init.normal_(weight, std=0.02 * scale)  # published as cut at 2, which is a hundred standard deviations
    elif init == "glorot":
        bound = scale * math.sqrt(6.0 / (fan_in + fan_out))
        weight.uniform_(-bound, bound)
    else:
        fan = fan_in if init == "fan_in" else (fan_in + fan_out) / 2
        std = TRUNCATION * scale / math.sqrt(fan)
        nn.init.trunc_normal_(weight, 0.0, std, -2.0 * std, 2.0 * std)


def dense(input_dim: int, output_dim: int, init: Init, scale: float = 1.0, bias: bool = True) -> nn.Linear:
    """Return a linear layer with these initial weights and no bias at the start."""
    layer = nn.Linear(input_dim, output_dim, bias)
    initialize(layer.weight, input_dim, output_dim, init, scale)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class BlockLinear(nn.Module):
    """A linear layer whose weight is block-diagonal: every block of the output reads one block of the input.

    Args:
        input_dim: Numbers read, all blocks together.
        output_dim: Numbers put out, all blocks together.
        num_blocks: Blocks.
        init: Of the weights; the fan is that of the whole input and not of a block.
    """

    def __init__(self, input_dim: int, output_dim: int, num_blocks: int, init: Init) -> None:
        super().__init__()
        if input_dim % num_blocks or output_dim % num_blocks:
            raise ConfigError(f"num_blocks: {num_blocks} blocks do not divide {input_dim} inputs, {output_dim} outputs")
        self.num_blocks = num_blocks
        self.weight = nn.Parameter(torch.empty(num_blocks, input_dim // num_blocks, output_dim // num_blocks))
        self.bias = nn.Parameter(torch.zeros(num_blocks, 1, output_dim // num_blocks))
        initialize(self.weight, input_dim, output_dim, init)

    def forward(self, x: Tensor) -> Tensor:
        """Return blocks [G, B, out / G] of blocks [G, B, in / G]."""
        return torch.bmm(x, self.weight) + self.bias  # baddbmm would first copy the bias to every row


class Stack(nn.Sequential):
    """Linear, normalisation and activation, `num_layers` times; without layers the input passes through.

    Args:
        input_dim: Numbers read.
        units: Width of every layer.
        num_layers: How many.
        style: Of the layers.
    """

    def __init__(self, input_dim: int, units: int, num_layers: int, style: LayerStyle) -> None:
        layers: list[nn.Module] = []
        for index in range(num_layers):
            layers += [dense(units if index else input_dim, units, style.init), norm_layer(style.norm, units)]
            layers.append(activation_module(style.activation))
        super().__init__(*layers)
        self.output_dim = units if num_layers else input_dim
