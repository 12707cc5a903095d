"""A multilayer perceptron that ends in features; workflows put their own heads on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.core import ConfigError, unknown_name

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "mish": nn.Mish,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def activation_module(name: str) -> nn.Module:
    """Return the activation of this name."""
    if name not in ACTIVATIONS:
        raise ConfigError(unknown_name("activation", name, ACTIVATIONS))
    return ACTIVATIONS[name]()


def orthogonal_linear(input_dim: int, output_dim: int, gain: float) -> nn.Linear:
    """Return a linear layer with orthogonal weights of this gain and zero bias."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Sequential):
    """Linear, (layer norm,) activation, for each hidden dimension; the last one is the output.

    Args:
        input_dim: Numbers read.
        hidden_dims: Width of each layer; an empty list passes the input through.
        activation: One of `ACTIVATIONS`.
        layer_norm: Normalise before each activation.
        gain: Scale of the orthogonal initial weights.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int] = (64, 64),
        activation: str = "tanh",
        layer_norm: bool = False,
        gain: float = math.sqrt(2.0),
    ) -> None:
        layers: list[nn.Module] = []
        width = input_dim
        for hidden in hidden_dims:
            layers.append(orthogonal_linear(width, hidden, gain))
            if layer_norm:
                layers.append(nn.LayerNorm(hidden))
            layers.append(activation_module(activation))
            width = hidden
        super().__init__(*layers)
        self.input_dim, self.output_dim = input_dim, width

    def forward(self, x: Tensor) -> Tensor:
        """Return the features. Linear layers are called as functions: a small network's time goes into the calls."""
        for module in self._modules.values():
            if type(module) is nn.Linear:
                x = F.linear(x, module.weight, module.bias)
            else:
                x = torch.tanh(x) if type(module) is nn.Tanh else module(x)
        return x
