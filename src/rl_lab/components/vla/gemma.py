"""Layers of Gemma (arXiv 2403.08295) by the names of its checkpoints: what each expert does with its own tokens.

Attention is not in here: queries, keys and values of a layer leave it, and what was read comes back (`finish`), so that
tokens of two experts can see each other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.vla.sizes import AttentionSizes, ExpertSizes

Rotation = tuple[Tensor, Tensor]  # cosines and sines [B, 1, T, head_dim / 2]
Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys, values [B, heads, T, head_dim]

EPSILON = 1e-6
LONGEST_WAVE = 10_000.0


class RMSNorm(nn.Module):
    """Scales tokens to a root mean square of `1 + weight`, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., width]."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return (wide * scale * (1.0 + self.weight.float())).to(x.dtype)


class Embedding(nn.Module):
    """A learned vector for each of a number of things."""

    def __init__(self, number: int, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(number, width))
        if not self.weight.is_meta:  # where drawing nothing would take torch seconds of imports
            nn.init.normal_(self.weight, std=std)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return [..., width] of numbers [...]."""
        return F.embedding(numbers, self.weight)


class Projections(nn.Module):
    """Queries, keys and values of tokens, and the way back."""

    def __init__(self, width: int, sizes: AttentionSizes) -> None:
        super().__init__()
        self.head_dim = sizes.head_dim
        queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_key_heads * sizes.head_dim
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, width, bias=False)

    def heads(self, projection: nn.Module, x: Tensor) -> Tensor:
        """Return [B, heads, T, head_dim]."""
        return projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GatedMLP(nn.Module):
    """GeGLU (Shazeer, 2020)."""

    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.mlp_dim, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.mlp_dim, bias=False)
        self.down_proj = nn.Linear(sizes.mlp_dim, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width]."""
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class GemmaLayer(nn.Module):
    """One layer of one expert, without the attention itself."""

    def __init__(self, sizes: ExpertSizes, attention: AttentionSizes) -> None:
        super().__init__()
        self.self_attn = Projections(sizes.width, attention)
        self.mlp = GatedMLP(sizes)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(sizes.width), RMSNorm(sizes.width)

    def begin(self, x: Tensor, rotation: Rotation) -> Heads:
        """Return queries, keys and values of tokens [B, T, width]."""
        own, normed = self.self_attn, self.input_layernorm(x)
        return (rotated(own.heads(own.q_proj, normed), rotation), *self._kept(normed, rotation))

    def remember(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Return keys and values alone."""
        return self._kept(self.input_layernorm(x), rotation)

    def _kept(self, normed: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        own = self.self_attn
        return rotated(own.heads(own.k_proj, normed), rotation), own.heads(own.v_proj, normed)

    def finish(self, x: Tensor, read: Tensor) -> Tensor:
        """Return tokens [B, T, width] after they `read` [B, heads, T, head_dim]."""
        x = x + self.self_attn.o_proj(read.transpose(1, 2).flatten(2))
        return x + self.mlp(self.post_attention_layernorm(x))


class Gemma(nn.Module):
    """The layers of one expert and its last normalisation; with words, their embeddings."""

    def __init__(self, sizes: ExpertSizes, attention: AttentionSizes, vocabulary: int | None = None) -> None:
        super().__init__()
        if vocabulary is not None:
            self.embed_tokens = Embedding(vocabulary, sizes.width, sizes.width**-0.5)  # of length one once scaled
        self.layers = nn.ModuleList(GemmaLayer(sizes, attention) for _ in range(attention.depth))
        self.norm = RMSNorm(sizes.width)

    def each_layer(self) -> list[GemmaLayer]:
        """Return the layers in their order."""
        return list(self.layers)  # type: ignore[arg-type]


def rotation_at(positions: Tensor, head_dim: int) -> Rotation:
    """Return by what queries and keys at positions [B, T] are turned (RoPE, Su et al., 2021)."""
    half = head_dim // 2
    speeds = LONGEST_WAVE ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions[:, None, :, None].float() * speeds
    return angles.cos(), angles.sin()


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Return heads [B, heads, T, head_dim] turned: the first half of a head's numbers against the second."""
    cos, sin = rotation
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
