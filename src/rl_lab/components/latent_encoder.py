"""What TD-MPC reads of an observation: vectors by dense layers, images by four unpadded convolutions, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_lab.components.layers import LayerStyle, Stack
from rl_lab.components.world_encoder import WorldEncoder, by_name, split_leaves
from rl_lab.components.world_images import to_unit
from rl_lab.core import ConfigError, Observation, Space, flat_dim
from rl_lab.core.ranges import Count, Natural
from rl_lab.ops.augmentation import random_shift

KERNELS = (7, 5, 3, 3)
STRIDES = (2, 2, 2)  # of all but the last
RELU_GAIN = 2.0**0.5
TDMPC2_STYLE = LayerStyle("mish", "layer_1e-5", "normal_0.02")


def joined(*parts: Tensor | None) -> Tensor:
    """Return side by side what there is of some numbers [..., n]."""
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else torch.cat(present, -1)


class ImageTokens(nn.Sequential):
    """Convolutions with kernels 7, 5, 3 and 3 and ReLUs between them: 64 x 64 pixels become 4 x 4.

    Args:
        shape: Channels, height and width.
        channels: Of every convolution.
        last_stride: 1 (TD-MPC2: no ReLU behind it) or 2 (TD-MPC: one more).
        is_orthogonal: Whether weights begin orthogonal (TD-MPC) or as torch's do (TD-MPC2).
    """

    def __init__(self, shape: Sequence[int], channels: int, last_stride: int, is_orthogonal: bool) -> None:
        layers: list[nn.Module] = []
        depth, sides = shape[0], list(shape[1:])
        for kernel, stride in zip(KERNELS, (*STRIDES, last_stride), strict=True):
            layers += [nn.Conv2d(depth, channels, kernel, stride), nn.ReLU()]
            depth, sides = channels, [(side - kernel) // stride + 1 for side in sides]
        if min(sides) < 1:
            raise ConfigError(f"environment: images of {shape[1]}x{shape[2]} are too small for four convolutions")
        super().__init__(*(layers if last_stride > 1 else layers[:-1]), nn.Flatten())
        self.output_dim = channels * sides[0] * sides[1]
        for layer in self:
            if is_orthogonal and isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.orthogonal_(layer.weight, RELU_GAIN)
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens [..., output_dim] of images [..., C, H, W]."""
        rows = images.reshape(-1, *images.shape[-3:])
        return super().forward(to_unit(rows) - 0.5).reshape(*images.shape[:-3], self.output_dim)


class LatentEncoder(WorldEncoder):
    """Turns observations, and what is known of the task, into tokens.

    Args:
        units: Width of the dense layers for vectors.
        num_layers: How many.
        style: Of the dense layers.
        symlog: Squash the numbers of vectors first.
        depth: Channels of convolutions.
        last_stride: Of the last convolution: 1 (TD-MPC2) or 2 (TD-MPC).
        shift_pad: Pixels by which images are moved at random where something is learned of them; 0: none.
    """

    def __init__(
        self,
        units: Count = 256,
        num_layers: Natural = 1,
        style: LayerStyle = TDMPC2_STYLE,
        *,
        symlog: bool = False,
        depth: Count = 32,
        last_stride: Count = 1,
        shift_pad: Natural = 3,
    ) -> None:
        super().__init__(units, num_layers, style, symlog=symlog, depth=depth)
        self.last_stride, self.shift_pad = last_stride, shift_pad

    def bind(self, space: Space, task_dim: int = 0) -> None:
        """Make the layers that these observations need, and so many numbers of the task."""
        assert self.output_dim == 0, "an encoder is bound once"
        self.space, self.leaves = space, split_leaves(space)
        vector_dim = flat_dim({**self.leaves.numbers, **self.leaves.choices})
        self.vectors = Stack(vector_dim + task_dim, self.units, self.num_layers, self.style) if vector_dim else None
        is_orthogonal = self.style.init == "orthogonal"
        self.images = nn.ModuleList(
            ImageTokens(leaf.shape, self.depth, self.last_stride, is_orthogonal) for leaf in self.leaves.images.values()
        )
        self.output_dim = task_dim if self.vectors is None else self.vectors.output_dim
        self.output_dim += sum(image.output_dim for image in self.images)  # type: ignore[misc]

    @property
    def is_lone_image(self) -> bool:
        """Return whether tokens are those of one image and nothing else."""
        return len(self.images) == 1 and self.output_dim == self.images[0].output_dim

    def forward(self, obs: Observation, task: Tensor | None = None) -> Tensor:
        """Return tokens [..., output_dim] of observations, and of the task [..., task_dim] where there is one."""
        parts = by_name(self.space, obs)
        tokens = [encoder(parts[key]) for key, encoder in zip(self.leaves.images, self.images, strict=True)]
        if self.vectors is not None:
            tokens.insert(0, self.vectors(joined(self._vector(parts), task)))
        elif task is not None:
            tokens.insert(0, task)
        return joined(*tokens)

    def augmented(self, obs: Observation) -> Observation:
        """Return observations with their images [..., C, H, W] moved at random, each by itself."""
        if not (self.images and self.shift_pad):
            return obs
        moved = {key: self._moved(by_name(self.space, obs)[key]) for key in self.leaves.images}
        return {**obs, **moved} if isinstance(obs, dict) else next(iter(moved.values()))

    def _moved(self, images: Tensor) -> Tensor:
        return random_shift(images.flatten(0, -4), self.shift_pad).reshape(images.shape)
