"""A controller as a vector of parameters: many act at once, each by its own weights, and none has a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rl_lab.components.model_actions import ModelActions, one_hots
from rl_lab.core.ranges import Count
from rl_lab.ops.distributions import masked_logits


class Controller(nn.Module):
    """Linear, or a small MLP with tanh: numbers of an action lie in [-1, 1] by tanh, of choices the largest is taken.

    Args:
        hidden_dims: Width of each hidden layer; empty: linear.
    """

    def __init__(self, hidden_dims: Sequence[Count] = ()) -> None:
        super().__init__()
        self.hidden_dims = tuple(hidden_dims)

    def bind(self, input_dim: int, code: ModelActions) -> None:
        """Learn how many numbers are read, and how actions are spoken of."""
        widths = [input_dim, *self.hidden_dims, code.dim]
        self._shapes = [(width + 1, out) for width, out in pairwise(widths)]  # the bias is the last row
        self._sizes = [rows * columns for rows, columns in self._shapes]
        self._code, self.num_parameters = code, sum(self._sizes)

    def forward(self, parameters: Tensor, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return actions [G, R, A] of G controllers [G, num_parameters] for features [G, R, F] of each.

        Of choices, only those that `mask` [G, R, choices] allows are taken.
        """
        layers = zip(parameters.split(self._sizes, -1), self._shapes, strict=True)
        for index, (flat, shape) in enumerate(layers):
            weights = flat.unflatten(-1, shape)
            features = torch.baddbmm(weights[:, -1:], features.tanh() if index else features, weights[:, :-1])
        numbers, scores = self._code.split(features)
        if not self._code.nvec:
            return numbers.tanh()
        chosen = one_hots(masked_logits(scores, mask), self._code.nvec)
        return torch.cat([numbers.tanh(), chosen], -1) if self._code.num_numbers else chosen
