"""Many parameters in one tensor: norms, clipping and optimiser steps become one operation each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves parameters into one flat tensor, of which they become views; hand `tensor` to the optimiser.

    Elementwise optimisers (SGD, Adam, AdamW, RMSprop) do the same to the flat tensor as to its parts. Loading a state
    dict copies into the views and so keeps them; move the module to its device first.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parts = list(parameters)
        self.tensor = nn.Parameter(torch.cat([part.detach().flatten() for part in self.parts]))
        for part, view in zip(self.parts, self.tensor.data.split([p.numel() for p in self.parts]), strict=True):
            part.data = view.view_as(part)

    def set_gradient(self, loss: Tensor, max_norm: float | None) -> Tensor:
        """Set the gradient of `loss`, scaled down to `max_norm` where it is longer; return its norm before that."""
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, self.parts, materialize_grads=True)])
        norm = torch.linalg.vector_norm(gradient)
        if max_norm is not None:
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.tensor.grad = gradient
        return norm


@torch.no_grad()
def masked_step(optimizer: torch.optim.Optimizer, keep: Tensor) -> None:
    """Step; where `keep` (a 0-dim bool) is False, parameters and optimiser state end bit for bit as they were.

    The very first step of an optimiser makes its state and must not be masked.
    """
    touched = [p for group in optimizer.param_groups for p in group["params"]]
    touched += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    before = [tensor.clone() for tensor in touched]
    optimizer.step()
    for tensor, old in zip(touched, before, strict=True):
        tensor.copy_(torch.where(keep, tensor, old))
