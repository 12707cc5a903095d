"""A small MLP on a CPU as NumPy: acting for a few environments is mostly the bookkeeping of torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rl_lab.components.mlp import MLP
from rl_lab.components.paired import ACTIVATIONS, activation_of, linears

FEW_ROWS = 32  # up to here NumPy wins


def fast_forward(trunk: nn.Module, head: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return a function of `head(trunk(x))` without gradient; for a plain MLP on a CPU it computes few rows in NumPy.

    Arrays share their memory with the parameters, which training changes in place.
    """

    def torch_forward(x: Tensor) -> Tensor:
        return head(trunk(x))

    kind = activation_of(trunk) if isinstance(trunk, MLP) else None
    if not isinstance(trunk, MLP) or kind not in ACTIVATIONS or head.weight.device.type != "cpu":
        return torch_forward
    if not all(type(module) in (nn.Linear, kind) for module in trunk):
        return torch_forward
    layers = [(linear.weight.detach().numpy().T, linear.bias.detach().numpy()) for linear in linears(trunk)]
    weight, bias = head.weight.detach().numpy().T, head.bias.detach().numpy()
    activation = ACTIVATIONS[kind].forward

    def array_forward(x: Tensor) -> Tensor:
        if x.shape[0] > FEW_ROWS or type(x) is not Tensor:  # the latter where a policy is exported
            return torch_forward(x)
        is_row = x.ndim == 2 and x.shape[0] == 1
        y = x.numpy()[0] if is_row else x.numpy()  # a vector takes half as long as a matrix of one row
        for layer_weight, layer_bias in layers:
            y = activation(y.dot(layer_weight) + layer_bias)
        y = y.dot(weight) + bias
        return torch.from_numpy(y[None] if is_row else y)

    return array_forward
