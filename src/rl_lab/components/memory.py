"""What a network that remembers is to a workflow: one call for a step and for a sequence."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn


class Memory(nn.Module):
    """Turns inputs into features that depend on the episode so far.

    The carry is a tree of tensors with leading dimension num_envs. Where `is_first` is True an episode starts: what the
    carry held is forgotten before that input is read.
    """

    input_dim: int | None = None  # numbers read per step; None: that is not said
    output_dim: int

    @abstractmethod
    def initial_carry(self, num_envs: int) -> Any:
        """Return the carry of an episode that has not begun."""

    @abstractmethod
    def sequence(self, inputs: Tensor, carry: Any, is_first: Tensor) -> tuple[Tensor, Any]:
        """Return features [T, N, output_dim] of inputs [T, N, input_dim], and the carry after the last of them."""

    def forward(self, inputs: Tensor, carry: Any, is_first: Tensor) -> tuple[Tensor, Any]:
        """Read a sequence [T, N, input_dim], or one step [N, input_dim]: `is_first` has its leading dimensions."""
        if is_first.ndim == 2:
            return self.sequence(inputs, carry, is_first)
        features, carry = self.sequence(inputs.unsqueeze(0), carry, is_first.unsqueeze(0))
        return features.squeeze(0), carry
