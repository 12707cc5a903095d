"""The convolutional networks of the published world models, for images [C, H, W], in three layouts.

`strided` without norm (PlaNet, DreamerV1, V2): unpadded, 64 -> 31 -> 14 -> 6 -> 2, and back 1 -> 5 -> 13 -> 30 -> 64.
`strided` with a norm (DreamerV3, 2023): padded, 64 -> 32 -> 16 -> 8 -> 4 and back.
`pooled` (DreamerV3, 2024): the same sizes by 5x5 convolutions and the largest of 2x2 pixels; back by doubled pixels.

Where this differs from the published code: each image of a dict has its own network (there they are stacked as
channels), images stay 8 bits deep for PlaNet, too, and V3's (2023) output layers begin like all others (there
uniformly, with the same variance). Any image whose sides can be halved four times fits, not only one of 64x64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.layers import BlockLinear, Init, LayerStyle, Norm, Stack, dense, initialize, norm_layer
from rl_lab.components.mlp import activation_module
from rl_lab.core import ConfigError, unknown_name

Images = Literal["strided", "pooled"]
NUM_STAGES = 4


class Layout(NamedTuple):
    """Shapes of an encoder and its decoder; widths are in units of `depth`."""

    widths: tuple[int, ...]
    kernel: int
    padding: int
    border: int  # pixels that missing padding cost the encoder's last map
    start_width: int
    back_widths: tuple[int, ...]
    back_kernels: tuple[int, ...]
    back_border: int  # pixels that the decoder's first map may miss
    is_pooled: bool = False


UNPADDED = Layout((1, 2, 4, 8), 4, 0, 2, 32, (4, 2, 1), (5, 5, 6, 6), 3)
PADDED = Layout((1, 2, 4, 8), 4, 1, 0, 8, (4, 2, 1), (4, 4, 4, 4), 0)
POOLED = Layout((2, 3, 4, 4), 5, 2, 0, 4, (4, 3, 2), (5, 5, 5, 5), 0, is_pooled=True)


def layout_of(images: Images, norm: Norm) -> Layout:
    """Return the layout that goes with these switches."""
    if images not in ("strided", "pooled"):
        raise ConfigError(unknown_name("images", images, ("strided", "pooled")))
    if images == "pooled":
        return POOLED
    return UNPADDED if norm == "none" else PADDED


def smallest_map(shape: Sequence[int], border: int, key: str) -> tuple[int, int]:
    """Return height and width of the map between encoder and decoder, `border` pixels smaller than the image halved."""
    height, width = shape[1:]
    factor = 2**NUM_STAGES
    least = factor * (border + 1)
    if height % factor or width % factor or min(height, width) < least:
        raise ConfigError(
            f"environment: images of {height}x{width} cannot be halved {NUM_STAGES} times by {key}"
            f" (sides must be multiples of {factor}, {least} or more)"
        )
    return height // factor - border, width // factor - border


def to_unit(images: Tensor) -> Tensor:
    """Return pixels as floats in 0..1; floats are taken to lie there already."""
    return images.float() / 255.0 if images.dtype == torch.uint8 else images.float()


class ChannelNorm(nn.Module):
    """Normalises the channels of each pixel.

    Args:
        kind: Of the normalisation.
        num_channels: Channels.
    """

    def __init__(self, kind: Norm, num_channels: int) -> None:
        super().__init__()
        self.norm = norm_layer(kind, num_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps [B, C, H, W], normalised."""
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


def _finish(num_channels: int, style: LayerStyle) -> list[nn.Module]:
    """Return what follows a convolution."""
    norm = [] if style.norm == "none" else [ChannelNorm(style.norm, num_channels)]
    return [*norm, activation_module(style.activation)]


def _begin(layer: nn.Conv2d | nn.ConvTranspose2d, init: Init) -> nn.Module:
    """Give a convolution its initial weights; fans count the pixels of the kernel."""
    area = math.prod(layer.kernel_size)
    initialize(layer.weight, layer.in_channels * area, layer.out_channels * area, init)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class ImageEncoder(nn.Sequential):
    """Convolutions that halve an image four times.

    Args:
        shape: Channels, height and width.
        layout: Of the convolutions.
        depth: Unit of their widths.
        style: Of the layers; with layer norm, which adds numbers of its own, they have no biases (DreamerV3, 2023).
        key: Config key of the component, for errors.
    """

    def __init__(self, shape: Sequence[int], layout: Layout, depth: int, style: LayerStyle, key: str) -> None:
        height, width = smallest_map(shape, layout.border, key)
        stride, has_bias = 1 if layout.is_pooled else 2, style.norm != "layer"
        layers: list[nn.Module] = []
        channels = shape[0]
        for factor in layout.widths:
            out = depth * factor
            layer = nn.Conv2d(channels, out, layout.kernel, stride, layout.padding, bias=has_bias)
            layers += [
                _begin(layer, style.init),
                *([nn.MaxPool2d(2)] if layout.is_pooled else []),
                *_finish(out, style),
            ]
            channels = out
        super().__init__(*layers, nn.Flatten())
        self.output_dim = channels * height * width

    def forward(self, images: Tensor) -> Tensor:
        """Return features [..., output_dim] of images [..., C, H, W]."""
        rows = images.reshape(-1, *images.shape[-3:])
        return super().forward(to_unit(rows) - 0.5).reshape(*images.shape[:-3], self.output_dim)


class SpatialStart(nn.Module):
    """The first map of DreamerV3's (2024) decoder: blocks of channels read blocks of the deterministic state.

    Args:
        deter_dim: Width of the deterministic state, which the features begin with.
        stoch_dim: Width of the rest, which every pixel reads through a hidden layer.
        shape: Channels, height and width of the map.
        units: Half the width of that hidden layer.
        num_blocks: Blocks.
        style: Of the layers.
    """

    def __init__(
        self, deter_dim: int, stoch_dim: int, shape: Sequence[int], units: int, num_blocks: int, style: LayerStyle
    ) -> None:
        super().__init__()
        if deter_dim % num_blocks or shape[0] % num_blocks:
            raise ConfigError(
                f"components.world_model.decoder.spatial_blocks: {num_blocks} blocks do not divide"
                f" a state of {deter_dim} and {shape[0]} channels"
            )
        self.sizes, self.num_blocks = (deter_dim, stoch_dim), num_blocks
        size = math.prod(shape)
        self.deter = BlockLinear(deter_dim, size, num_blocks, style.init)
        hidden = Stack(stoch_dim, 2 * units, 1, style)
        self.stoch = nn.Sequential(hidden, dense(hidden.output_dim, size, style.init))

    def forward(self, features: Tensor) -> Tensor:
        """Return flat maps [B, C * H * W] of features [B, F]."""
        deter, stoch = features.split(self.sizes, -1)
        blocks = self.deter(deter.unflatten(-1, (self.num_blocks, -1)).transpose(0, 1))  # [G, B, C / G * H * W]
        return blocks.transpose(0, 1).flatten(1) + self.stoch(stoch)


class ImageDecoder(nn.Module):
    """Doubles a small map four times; puts out pixels around 0..1 (pooled: strictly inside).

    Args:
        shape: Channels, height and width of the image.
        layout: Of the convolutions.
        depth: Unit of their widths.
        style: Of the layers.
        feature_dim: Numbers read.
        deter_dim: How many of them, the first ones, are the deterministic state: a pooled decoder reads them in blocks.
            With 0 it begins with one linear layer, as the others always do.
        units: Half the width of the hidden layer for the other ones.
        num_blocks: Blocks.
    """

    def __init__(
        self,
        shape: Sequence[int],
        layout: Layout,
        depth: int,
        style: LayerStyle,
        *,
        feature_dim: int,
        deter_dim: int,
        units: int,
        num_blocks: int,
    ) -> None:
        super().__init__()
        size = smallest_map(shape, layout.back_border, "components.world_model.decoder")
        self.start_shape, self.is_pooled = (depth * layout.start_width, *size), layout.is_pooled
        if layout.is_pooled and 0 < deter_dim < feature_dim:
            stoch_dim = feature_dim - deter_dim
            self.start: nn.Module = SpatialStart(deter_dim, stoch_dim, self.start_shape, units, num_blocks, style)
        else:
            self.start = dense(feature_dim, math.prod(self.start_shape), style.init)
        channels = self.start_shape[0]
        layers = _finish(channels, style) if layout.is_pooled else []  # the others go on linearly
        for factor, kernel in zip(layout.back_widths, layout.back_kernels, strict=False):
            out = depth * factor
            layers += [*_doubling(channels, out, kernel, layout, style, style.norm != "layer"), *_finish(out, style)]
            channels = out
        layers += _doubling(channels, shape[0], layout.back_kernels[-1], layout, style, True)
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Return float32 images [..., C, H, W] of features [..., F]."""
        rows = self.start(features.reshape(-1, features.shape[-1])).unflatten(-1, self.start_shape)
        images = self.layers(rows).float()
        pixels = images.sigmoid() if self.is_pooled else images + 0.5
        return pixels.reshape(*features.shape[:-1], *pixels.shape[1:])


def _doubling(
    channels: int, out: int, kernel: int, layout: Layout, style: LayerStyle, has_bias: bool
) -> list[nn.Module]:
    """Return the layers of one stage on the way back, before its norm."""
    if layout.is_pooled:
        layer = nn.Conv2d(channels, out, kernel, padding=layout.padding, bias=has_bias)
        return [nn.Upsample(scale_factor=2), _begin(layer, style.init)]
    return [_begin(nn.ConvTranspose2d(channels, out, kernel, 2, layout.padding, bias=has_bias), style.init)]
