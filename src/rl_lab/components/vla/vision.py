"""SigLIP's encoder of pictures (Zhai et al., 2023, arXiv 2303.15343), by the names of its checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.vla.gemma import Embedding
from rl_lab.components.vla.sizes import VisionSizes

EPSILON = 1e-6


class VisionAttention(nn.Module):
    """Every patch of a picture sees every other one."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width]."""
        heads = [each(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self._projections()]
        return self.out_proj(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))

    def _projections(self) -> tuple[nn.Linear, ...]:
        return self.q_proj, self.k_proj, self.v_proj


class VisionMLP(nn.Module):
    """Two layers."""

    def __init__(self, width: int, mlp_dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, mlp_dim), nn.Linear(mlp_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width]."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class VisionLayer(nn.Module):
    """Attention and an MLP, each beside a shortcut and behind a normalisation."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.self_attn = VisionAttention(sizes.width, sizes.num_heads)
        self.layer_norm2 = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.mlp = VisionMLP(sizes.width, sizes.mlp_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width]."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class VisionEmbeddings(nn.Module):
    """Patches as tokens, each with a learned place."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, sizes.width, sizes.patch_size, sizes.patch_size)
        self.position_embedding = Embedding(sizes.num_tokens, sizes.width, 0.02)  # the scale of ViTs

    def forward(self, pictures: Tensor) -> Tensor:
        """Return tokens [B, num_tokens, width] of pictures [B, 3, S, S]."""
        return self.patch_embedding(pictures).flatten(2).transpose(1, 2) + self.position_embedding.weight


class VisionEncoder(nn.Module):
    """The layers."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width]."""
        for layer in self.layers:
            x = layer(x)
        return x


class VisionModel(nn.Module):
    """Pictures to tokens."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.embeddings, self.encoder = VisionEmbeddings(sizes), VisionEncoder(sizes)
        self.post_layernorm = nn.LayerNorm(sizes.width, eps=EPSILON)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return tokens [B, num_tokens, width] of pictures [B, 3, S, S] in [-1, 1]."""
        return self.post_layernorm(self.encoder(self.embeddings(pictures)))


class VisionTower(nn.Module):
    """The model, under the name that checkpoints have for it."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.vision_model = VisionModel(sizes)


def fitted(pictures: Tensor, size: int) -> Tensor:
    """Return pictures [B, C, H, W] of bytes as [B, 3, size, size] in [-1, 1]: scaled, and black where nothing is."""
    scaled = pictures.to(torch.float32) / 127.5 - 1.0
    if scaled.shape[1] == 1:
        scaled = scaled.expand(-1, 3, -1, -1)
    height, width = scaled.shape[-2:]
    if (height, width) == (size, size):
        return scaled
    longer = max(height, width)
    inner = (max(1, round(height * size / longer)), max(1, round(width * size / longer)))
    scaled = F.interpolate(scaled, inner, mode="bilinear", align_corners=False, antialias=longer > size)
    above, before = (size - inner[0]) // 2, (size - inner[1]) // 2
    return F.pad(scaled, (before, size - inner[1] - before, above, size - inner[0] - above), value=-1.0)
