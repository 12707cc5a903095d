"""A policy that is learned from examples: a distribution over chunks of actions of any kind."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from rl_lab.components.mlp import orthogonal_linear
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.precision import in_float32
from rl_lab.components.squashed_heads import HEAD_GAIN, LOG_STD_RANGE
from rl_lab.ops.world_distributions import BoundedNormal, Joint, MultiOneHot, WorldDistribution

NumberKind = Literal["gaussian", "squared", "absolute"]


class Point(BoundedNormal):
    """Numbers that are certain: a sample is the mean, and minus the error stands for the log-density.

    Args:
        mean: The numbers, [..., A].
        is_absolute: Whether errors are taken as they are; else squared.
    """

    def __init__(self, mean: Tensor, is_absolute: bool) -> None:
        super().__init__(mean, torch.zeros_like(mean))
        self._is_absolute = is_absolute

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return minus the sum of the errors."""
        errors = actions - self.mean
        return -(errors.abs() if self._is_absolute else errors.square()).sum(-1)


class ClonePolicy(nn.Module):
    """A distribution over chunks of actions for every feature vector.

    Args:
        trunk: `components.actor`.
        code: What the actions are made of.
        length: Actions of a chunk.
        kind: How numbers are learned.
    """

    def __init__(self, trunk: nn.Module, code: ModelActions, length: int, kind: NumberKind) -> None:
        super().__init__()
        self.trunk, self._kind, self._nvec, self._length = trunk, kind, code.nvec, length
        self._sizes = [code.num_numbers, code.num_numbers if kind == "gaussian" else 0, code.num_choices]
        width = int(trunk.output_dim)  # type: ignore[arg-type]
        self.head = orthogonal_linear(width, length * sum(self._sizes), HEAD_GAIN)

    def forward(self, features: Tensor, mask: Tensor | None) -> WorldDistribution:
        """Return the distribution over chunks [B, length, A]."""
        return self.distribution(in_float32(self.head, self.trunk(features)), mask)

    def distribution(self, output: Tensor, mask: Tensor | None) -> WorldDistribution:
        """Return the distribution that belongs to an output of the head."""
        mean, log_std, logits = output.unflatten(-1, (self._length, -1)).split(self._sizes, -1)
        parts: list[WorldDistribution] = []
        if self._sizes[0] and self._kind == "gaussian":
            parts.append(BoundedNormal(mean.tanh(), log_std.clamp(*LOG_STD_RANGE).exp()))
        elif self._sizes[0]:
            parts.append(Point(mean.tanh(), self._kind == "absolute"))
        if self._nvec:
            parts.append(MultiOneHot(logits, self._nvec, mask=None if mask is None else mask.unsqueeze(-2)))
        return parts[0] if len(parts) == 1 else Joint(*parts)
