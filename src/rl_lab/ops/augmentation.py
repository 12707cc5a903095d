"""Augmentation of images: random shifts (Kostrikov et al., 2021, https://arxiv.org/abs/2004.13649)."""

from __future__ import annotations

import torch
from torch import Tensor


def random_shift(images: Tensor, pad: int) -> Tensor:
    """Return images [B, C, H, W], each moved by up to `pad` pixels in both directions; borders repeat."""
    count, _, height, width = images.shape
    down, right = torch.randint(0, 2 * pad + 1, (2, count), device=images.device)
    padded = _padded(_padded(images, pad, -1), pad, -2)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, 2 pad + 1, 2 pad + 1, H, W], a view
    return windows[torch.arange(count, device=images.device), :, down, right]


def _padded(images: Tensor, pad: int, dim: int) -> Tensor:
    """Return images with the border of one dimension repeated; torch's own padding knows no bytes."""
    first, last = images.narrow(dim, 0, 1), images.narrow(dim, images.shape[dim] - 1, 1)
    return torch.cat([first.repeat_interleave(pad, dim), images, last.repeat_interleave(pad, dim)], dim)
