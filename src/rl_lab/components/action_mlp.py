"""A perceptron over noisy actions: the smallest network for chunks of a few numbers, and the fastest on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_lab.components.action_generators import Denoiser, sinusoids
from rl_lab.components.mlp import MLP
from rl_lab.components.precision import in_float32
from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count


class ActionMLP(Denoiser):
    """Reads all actions of a chunk, the level of noise and all that was seen as one row.

    Args:
        hidden_dims: Widths of the layers.
        activation: Of the layers, one of `mlp.ACTIVATIONS`.
        level_dim: Width of the embedding of a level of noise, an even number.
    """

    def __init__(
        self, hidden_dims: Sequence[Count] = (256, 256), activation: str = "silu", level_dim: Count = 32
    ) -> None:
        super().__init__()
        if level_dim % 2:
            raise ConfigError(f"ActionMLP: level_dim={level_dim} must be even")
        self.hidden_dims, self.activation, self.level_dim = tuple(hidden_dims), activation, level_dim

    def bind(self, action_dim: int, length: int, feature_dim: int, history: int) -> None:
        """Make the layers."""
        width = length * action_dim + self.level_dim + history * feature_dim
        self.trunk = MLP(width, self.hidden_dims, self.activation)
        self.head = nn.Linear(self.trunk.output_dim, length * action_dim)

    def prepare(self, condition: Tensor) -> Tensor:
        """Return features [B, history, feature_dim] as rows."""
        return condition.flatten(1)

    def forward(self, noisy: Tensor, level: Tensor, prepared: Tensor) -> Tensor:
        """Return [B, length, action_dim]."""
        embedded = sinusoids(level, self.level_dim).expand(len(noisy), -1)
        features = self.trunk(torch.cat([noisy.flatten(1), embedded, prepared], -1))
        return in_float32(self.head, features).view_as(noisy)
