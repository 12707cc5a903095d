"""The convolutional encoder of DQN's Nature paper (Mnih et al., 2015), for images [C, H, W]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_lab.components.mlp import activation_module, orthogonal_linear
from rl_lab.core import ConfigError


class CNN(nn.Module):
    """Convolutions over uint8 images (scaled to 0..1) or float images, then one linear layer of features.

    Args:
        input_shape: Channels, height and width.
        channels: Output channels of each convolution.
        kernel_sizes: Their kernel sizes.
        strides: Their strides.
        output_dim: Number of features.
        activation: A name of `components.mlp.ACTIVATIONS`.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        channels: Sequence[int] = (32, 64, 64),
        kernel_sizes: Sequence[int] = (8, 4, 3),
        strides: Sequence[int] = (4, 2, 1),
        output_dim: int = 512,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        if not len(channels) == len(kernel_sizes) == len(strides):
            raise ConfigError("CNN: channels, kernel_sizes and strides must have the same length")
        self.output_dim = output_dim
        gain = math.sqrt(2.0)
        layers: list[nn.Module] = []
        depth = input_shape[0]
        for width, kernel, stride in zip(channels, kernel_sizes, strides, strict=True):
            convolution = nn.Conv2d(depth, width, kernel, stride)
            nn.init.orthogonal_(convolution.weight, gain)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, activation_module(activation)]
            depth = width
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(
            orthogonal_linear(self._flat_dim(input_shape), output_dim, gain), activation_module(activation)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features [..., output_dim] of images [..., C, H, W]."""
        rows = images.reshape(-1, *images.shape[-3:])
        rows = rows.float() / 255.0 if images.dtype == torch.uint8 else rows
        return self.head(self.convolutions(rows)).reshape(*images.shape[:-3], self.output_dim)

    def _flat_dim(self, input_shape: Sequence[int]) -> int:
        try:
            with torch.no_grad():
                return int(self.convolutions(torch.zeros(1, *input_shape)).shape[-1])
        except RuntimeError as error:
            raise ConfigError(f"CNN: the convolutions do not fit an image of {list(input_shape)}: {error}") from error
