"""A small residual network for pictures: ResNet-18 (He et al., 2016) with group normalisation and spatial softmax.

Batch normalisation would not get along with averaged weights; where things are matters more than what they are, so that
the last maps become the mean places of as many keypoints (Finn et al., 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.precision import in_float32
from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count
from rl_lab.ops.augmentation import centre_crop, random_crop

GROUP = 16  # channels that are normalised together


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, input_dim: int, output_dim: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(input_dim, output_dim, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(output_dim, output_dim, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(_norm(output_dim) for _ in range(2))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or input_dim != output_dim:
            self.shortcut = nn.Sequential(nn.Conv2d(input_dim, output_dim, 1, stride, bias=False), _norm(output_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, output_dim, H / stride, W / stride]."""
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """Pictures [..., C, H, W] to features [..., output_dim].

    Args:
        channels: Of each stage; from the second on each halves the picture.
        num_blocks: Residual blocks per stage.
        num_keypoints: Places that are looked for.
        output_dim: Number of features.
        crop: Side in pixels of the part that is looked at: a random one while it learns, the middle later; null: all.
    """

    def __init__(
        self,
        channels: Sequence[int] = (64, 128, 256, 512),
        num_blocks: Count = 2,
        num_keypoints: Count = 32,
        output_dim: Count = 64,
        crop: Count | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.num_blocks, self.num_keypoints = tuple(channels), num_blocks, num_keypoints
        self.output_dim, self.crop = output_dim, crop

    def bind(self, shape: Sequence[int]) -> None:
        """Make the layers for pictures of this shape; raises ConfigError when they are smaller than the crop."""
        if self.crop is not None and self.crop > min(shape[1:]):
            raise ConfigError(
                f"components.encoder.crop: {self.crop} pixels are more than pictures of {list(shape)} have"
            )
        self.stem = nn.Sequential(
            nn.Conv2d(shape[0], self.channels[0], 7, 2, 3, bias=False),
            _norm(self.channels[0]),
            nn.ReLU(),
        )
        widths = [self.channels[0], *self.channels]
        self.stages = nn.Sequential(
            *(
                ResidualBlock(widths[stage + (index > 0)], width, 2 if stage > 0 and index == 0 else 1)
                for stage, width in enumerate(self.channels)
                for index in range(self.num_blocks)
            )
        )
        self.maps = nn.Conv2d(self.channels[-1], self.num_keypoints, 1)
        self.head = nn.Linear(2 * self.num_keypoints, self.output_dim)

    def forward(self, pictures: Tensor, *, augment: bool = False) -> Tensor:
        """Return features; with `augment` of a random part of each picture."""
        rows = pictures.flatten(0, -4)
        if self.crop is not None:
            rows = random_crop(rows, self.crop, self.crop) if augment else centre_crop(rows, self.crop, self.crop)
        maps = self.maps(self.stages(halved(self.stem(rows.float() / 127.5 - 1.0))))
        return in_float32(self.head, spatial_softmax(maps.float())).unflatten(0, pictures.shape[:-3])


def halved(x: Tensor) -> Tensor:
    """Return the largest of every 3 x 3 of maps [B, C, H, W] of 0 and more, in steps of 2.

    That is `max_pool2d` with a padding of 1, whose gradient on a GPU adds up in any order.
    """
    rows = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 2).amax(-1)
    return rows.unfold(3, 3, 2).amax(-1)


def spatial_softmax(maps: Tensor) -> Tensor:
    """Return the mean place [B, 2 K], x and y in [-1, 1], of each of the maps [B, K, H, W] of logits."""
    height, width = maps.shape[-2:]
    chances = maps.flatten(-2).softmax(-1).unflatten(-1, (height, width))
    x, y = (torch.linspace(-1.0, 1.0, size, device=maps.device) for size in (width, height))
    return torch.cat([(chances.sum(-2) * x).sum(-1), (chances.sum(-1) * y).sum(-1)], -1)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(max(1, channels // GROUP), channels)
