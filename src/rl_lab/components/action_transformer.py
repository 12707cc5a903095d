"""A causal transformer over noisy actions (Chi et al., 2023); the level and what was seen stand before them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_lab.components.action_generators import Denoiser, sinusoids
from rl_lab.components.precision import in_float32
from rl_lab.components.transformer import Block
from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count


class ActionTransformer(Denoiser):
    """Tokens are the level, the observations and the actions; an action sees what was seen and the actions before it.

    Args:
        dim: Width.
        num_layers: Number of blocks.
        num_heads: Attention heads per block; divides `dim`.
    """

    allowed: Tensor

    def __init__(self, dim: Count = 256, num_layers: Count = 8, num_heads: Count = 4) -> None:
        super().__init__()
        if dim % (2 * num_heads):
            raise ConfigError(f"ActionTransformer: 2 x num_heads={num_heads} does not divide dim={dim}")
        self.dim = dim
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)

    def bind(self, action_dim: int, length: int, feature_dim: int, history: int) -> None:
        """Make the layers that depend on the task, and the mask."""
        self.embed_action, self.embed_feature = nn.Linear(action_dim, self.dim), nn.Linear(feature_dim, self.dim)
        self.positions = nn.Parameter(0.02 * torch.randn(1 + history + length, self.dim))  # scale of GPT-2
        self.head = nn.Linear(self.dim, action_dim)
        allowed = torch.ones(1 + history + length, 1 + history + length, dtype=torch.bool).tril()
        allowed[: 1 + history, : 1 + history] = True  # what is given sees all that is given, but no action
        self.register_buffer("allowed", allowed[None], persistent=False)

    def prepare(self, condition: Tensor) -> Tensor:
        """Return the tokens of features [B, history, feature_dim]."""
        return self.embed_feature(condition)

    def undecayed(self) -> list[nn.Parameter]:
        """Return all that is no matrix: biases, norms and positions, as the authors have it."""
        matrices = {id(layer.weight) for layer in self.modules() if isinstance(layer, nn.Linear)}
        return [parameter for parameter in self.parameters() if id(parameter) not in matrices]

    def forward(self, noisy: Tensor, level: Tensor, prepared: Tensor) -> Tensor:
        """Return [B, length, action_dim]."""
        embedded = sinusoids(level, self.dim).expand(len(noisy), -1).unsqueeze(1)
        x = torch.cat([embedded, prepared, self.embed_action(noisy)], 1) + self.positions
        for block in self.blocks:
            x = block(x, self.allowed)
        return in_float32(self.head, self.norm(x[:, -noisy.shape[1] :]))
