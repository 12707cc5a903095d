"""Augmentation of images: random shifts (Kostrikov et al., 2021, https://arxiv.org/abs/2004.13649) and crops."""

from __future__ import annotations

import torch
from torch import Tensor


def random_shift(images: Tensor, pad: int) -> Tensor:
    """Return images [B, C, H, W], each moved by up to `pad` pixels in both directions; borders repeat."""
    return random_crop(_padded(_padded(images, pad, -1), pad, -2), images.shape[-2], images.shape[-1])


def random_crop(images: Tensor, height: int, width: int) -> Tensor:
    """Return a part [B, C, height, width] of each image [B, C, H, W], from a place of its own."""
    windows = images.unfold(2, height, 1).unfold(
        3, width, 1
    )  # [B, C, places down, places right, height, width], a view
    count = len(images)
    down = torch.randint(0, windows.shape[2], (count,), device=images.device)
    right = torch.randint(0, windows.shape[3], (count,), device=images.device)
    return windows[torch.arange(count, device=images.device), :, down, right]


def centre_crop(images: Tensor, height: int, width: int) -> Tensor:
    """Return the middle [..., height, width] of images [..., H, W]."""
    top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
    return images[..., top : top + height, left : left + width]


def _padded(images: Tensor, pad: int, dim: int) -> Tensor:
    """Return images with the border of one dimension repeated; torch's own padding knows no bytes."""
    first, last = images.narrow(dim, 0, 1), images.narrow(dim, images.shape[dim] - 1, 1)
    return torch.cat([first.repeat_interleave(pad, dim), images, last.repeat_interleave(pad, dim)], dim)
