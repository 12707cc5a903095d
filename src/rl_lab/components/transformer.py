"""A small causal transformer (Vaswani et al., 2017, pre-norm) over the last K observations of an episode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.memory import Memory
from rl_lab.core import ConfigError


class Block(nn.Module):
    """Self-attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key_value, self.project = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """Transform [B, K, dim] to its last Q positions; `allowed` [B, Q, K] says which keys a query may read."""
        normed, x = self.attention_norm(x), x[:, -allowed.shape[1] :]
        query = self.query(normed[:, -allowed.shape[1] :]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key, value = self.key_value(normed).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed.unsqueeze(1))  # [B, heads, Q, dim]
        x = x + self.project(mixed.transpose(1, 2).flatten(-2))
        return x + self.feed(self.feed_norm(x))


class Transformer(Memory):
    """Features are a function of the last `context` inputs of the episode and of nothing else.

    Carry: the last `context - 1` inputs [N, context - 1, input_dim] and which of them belong to the running episode
    [N, context - 1]. Inputs and not embeddings are kept, so that a stored carry never grows stale as weights change.

    Args:
        input_dim: Numbers read per step.
        hidden_dim: Width of the transformer and size of the output.
        context: How many inputs it sees, the newest included; at least 2.
        num_layers: Number of blocks, at least 1.
        num_heads: Attention heads per block; divides `hidden_dim`.
    """

    def __init__(
        self, input_dim: int, hidden_dim: int = 64, context: int = 8, num_layers: int = 1, num_heads: int = 4
    ) -> None:
        super().__init__()
        if hidden_dim % num_heads or context < 2 or num_layers < 1:
            given = f"context {context}, num_layers {num_layers}, hidden_dim {hidden_dim}, num_heads {num_heads}"
            needed = "context >= 2, num_layers >= 1 and num_heads dividing hidden_dim"
            raise ConfigError(f"Transformer: needs {needed}, not {given}")
        self.input_dim, self.output_dim, self.context = input_dim, hidden_dim, context
        self.embed = nn.Linear(input_dim, hidden_dim)
        self.positions = nn.Parameter(torch.randn(context, hidden_dim) * 0.02)  # scale of GPT-2
        self.blocks = nn.ModuleList(Block(hidden_dim, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_dim)

    def initial_carry(self, num_envs: int) -> tuple[Tensor, Tensor]:
        """Return an empty past."""
        past = self.embed.weight.new_zeros(num_envs, self.context - 1, self.embed.in_features)
        return past, torch.zeros(past.shape[:2], dtype=torch.bool, device=past.device)

    def sequence(
        self, inputs: Tensor, carry: tuple[Tensor, Tensor], is_first: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Give every step its own window of the past and read the newest position of each."""
        past, is_valid = carry
        timeline = torch.cat([past.transpose(0, 1), inputs])  # [K - 1 + T, N, D]
        # Episodes are numbered; what the carry marks as foreign is in none of them.
        episodes = torch.cat([is_valid.T.long() - 1, is_first.long().cumsum(0)])  # [K - 1 + T, N]
        windows = timeline.unfold(0, self.context, 1).movedim(-1, 2)  # [T, N, K, D]
        same = episodes.unfold(0, self.context, 1)  # [T, N, K]
        same = same == same[..., -1:]
        features = self._last_feature(windows.flatten(0, 1), same.flatten(0, 1))
        keep = self.context - 1
        next_carry = timeline[-keep:].transpose(0, 1), (episodes[-keep:] == episodes[-1]).T
        return features.unflatten(0, inputs.shape[:2]), next_carry

    def _last_feature(self, windows: Tensor, is_valid: Tensor) -> Tensor:
        causal = torch.ones(self.context, self.context, dtype=torch.bool, device=windows.device).tril()
        itself = torch.eye(self.context, dtype=torch.bool, device=windows.device)  # a row of no keys would give NaN
        allowed = (causal & is_valid.unsqueeze(1)) | itself
        x = self.embed(windows) + self.positions
        for block in self.blocks[:-1]:
            x = block(x, allowed)
        return self.norm(self.blocks[-1](x, allowed[:, -1:]).squeeze(1))  # only the newest position is asked for
