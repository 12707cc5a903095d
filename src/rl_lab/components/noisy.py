"""Linear layers that explore by themselves: learnt, factorised Gaussian noise (Fortunato et al., 2018)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INITIAL_NOISE = 0.5  # of weights, over the square root of their number; the paper's for factorised noise


class NoisyLinear(nn.Module):
    """`y = W x + b + (S (x * f(e_in)) + s) * f(e_out)`, every row with noise `e` of its own; in eval mode `W x + b`.

    `f(e) = sign(e) sqrt(|e|)`: the noise of a weight is the product of that of its input and that of its output.

    Args:
        input_dim: Numbers read.
        output_dim: Numbers put out.
    """

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.input_dim, self.output_dim = input_dim, output_dim
        bound = 1.0 / math.sqrt(input_dim)
        self.weight = nn.Parameter(torch.empty(output_dim, input_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(output_dim).uniform_(-bound, bound))
        self.weight_noise = nn.Parameter(torch.full((output_dim, input_dim), INITIAL_NOISE * bound))
        self.bias_noise = nn.Parameter(torch.full((output_dim,), INITIAL_NOISE / math.sqrt(output_dim)))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., output_dim] of inputs [..., input_dim]."""
        mean = F.linear(x, self.weight, self.bias)
        if not self.training:
            return mean
        noise_in, noise_out = factor_noise(x), factor_noise(mean)
        return mean + F.linear(x * noise_in, self.weight_noise, self.bias_noise) * noise_out


def factor_noise(like: Tensor) -> Tensor:
    """Draw `sign(e) sqrt(|e|)` of Gaussian `e` in the shape of `like`."""
    drawn = torch.randn_like(like)
    return drawn.sign() * drawn.abs().sqrt()


def with_noise(network: nn.Module) -> nn.Module:
    """Replace every linear layer within `network` by a noisy one of its shape, and return the network."""
    for name, child in network.named_children():
        setattr(network, name, noisy_linear(child) if isinstance(child, nn.Linear) else with_noise(child))
    return network


def noisy_linear(linear: nn.Linear) -> NoisyLinear:
    """Return a noisy layer of this shape, with the paper's initial weights."""
    return NoisyLinear(linear.in_features, linear.out_features).to(linear.weight.device)
