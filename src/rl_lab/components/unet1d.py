"""The one-dimensional U-Net of Diffusion Policy (Chi et al., 2023, after Janner et al., 2022): convolutions over time.

Every block is scaled and shifted (FiLM, Perez et al., 2018) by what was seen and by the level of noise. Both come in by
one linear layer of activated inputs, so that the part of what was seen is computed once for all steps of denoising.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.action_generators import Denoiser, sinusoids
from rl_lab.components.precision import in_float32
from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count

FEW_ROWS = 32  # of a product: below, a convolution on a CPU spends most of its time laying out its weights anew


class Conv1d(nn.Conv1d):
    """A convolution over time; on a CPU, for one or a few chunks, a product with its weights as they lie: 3 to 5 x."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, out_channels, L / stride]."""
        if x.device.type != "cpu" or x.shape[0] * x.shape[2] > FEW_ROWS or torch.is_grad_enabled():
            return super().forward(x)
        windows = F.pad(x, 2 * self.padding).unfold(2, self.kernel_size[0], self.stride[0])  # type: ignore[arg-type]
        rows = windows.transpose(1, 2).flatten(2)  # [B, L / stride, in_channels * kernel_size]
        return F.linear(rows, self.weight.flatten(1), self.bias).transpose(1, 2)


class ConvBlock(nn.Module):
    """A convolution of the same length, group normalisation and Mish."""

    def __init__(self, input_dim: int, output_dim: int, kernel_size: int, num_groups: int) -> None:
        super().__init__()
        self.convolution = Conv1d(input_dim, output_dim, kernel_size, padding=kernel_size // 2)
        self.norm = nn.GroupNorm(num_groups, output_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, output_dim, L] of [B, input_dim, L]."""
        return F.mish(self.norm(self.convolution(x)))


class FilmBlock(nn.Module):
    """Two convolutions beside a shortcut; what the first puts out is scaled and shifted."""

    def __init__(self, input_dim: int, output_dim: int, kernel_size: int, num_groups: int) -> None:
        super().__init__()
        self.output_dim = output_dim
        self.first = ConvBlock(input_dim, output_dim, kernel_size, num_groups)
        self.second = ConvBlock(output_dim, output_dim, kernel_size, num_groups)
        self.shortcut = nn.Identity() if input_dim == output_dim else Conv1d(input_dim, output_dim, 1)

    def forward(self, x: Tensor, film: Tensor) -> Tensor:
        """Return [B, output_dim, L]; `film` [B or 1, 2 output_dim, 1] is scale and shift."""
        scale, shift = film.chunk(2, 1)
        return self.second(scale * self.first(x) + shift) + self.shortcut(x)


class UNet1d(Denoiser):
    """Halves the length of a chunk from level to level and back, with shortcuts between the same lengths.

    Args:
        channels: Of each level; the length of a chunk must be a multiple of 2 to the power of their number less one.
        kernel_size: Of the convolutions, odd.
        num_groups: Of the normalisation; divides all channels.
        level_dim: Width of the embedding of a level of noise, an even number.
    """

    def __init__(
        self,
        channels: Sequence[int] = (256, 512, 1024),
        kernel_size: Count = 5,
        num_groups: Count = 8,
        level_dim: Count = 256,
    ) -> None:
        super().__init__()
        if not channels or any(width % num_groups for width in channels) or kernel_size % 2 == 0:
            given = f"channels {list(channels)}, num_groups {num_groups}, kernel_size {kernel_size}"
            raise ConfigError(f"UNet1d: needs channels that num_groups divides and an odd kernel_size, not {given}")
        if level_dim % 2:
            raise ConfigError(f"UNet1d: level_dim={level_dim} must be even")
        self.channels, self._sizes, self.level_dim = tuple(channels), (kernel_size, num_groups), level_dim

    def bind(self, action_dim: int, length: int, feature_dim: int, history: int) -> None:
        """Make the layers; raises ConfigError for a length that cannot be halved often enough."""
        factor = 2 ** (len(self.channels) - 1)
        if length % factor:
            text = f"{length} actions cannot be halved {len(self.channels) - 1} times"
            raise ConfigError(f"algorithm.prediction_horizon: {text}, as {len(self.channels)} levels of channels need")
        widths = [action_dim, *self.channels]
        self.embed = nn.Sequential(
            nn.Linear(self.level_dim, 4 * self.level_dim), nn.Mish(), nn.Linear(4 * self.level_dim, self.level_dim)
        )
        self.down = nn.ModuleList(self._pair(before, after) for before, after in pairwise(widths))
        self.shrink = nn.ModuleList(Conv1d(width, width, 3, 2, 1) for width in self.channels[:-1])
        self.middle = self._pair(widths[-1], widths[-1])
        ups = list(pairwise(reversed(self.channels)))
        self.up = nn.ModuleList(self._pair(2 * before, after) for before, after in ups)
        self.grow = nn.ModuleList(nn.ConvTranspose1d(after, after, 4, 2, 1) for _, after in ups)
        self.last = ConvBlock(self.channels[0], self.channels[0], *self._sizes)
        self.head = nn.Conv1d(self.channels[0], action_dim, 1)
        self._widths = [2 * block.output_dim for block in self._blocks()]
        self.film = nn.Linear(self.level_dim + history * feature_dim, sum(self._widths))

    def prepare(self, condition: Tensor) -> Tensor:
        """Return the part of features [B, history, feature_dim] in the scales and shifts of all blocks."""
        return F.linear(F.mish(condition.flatten(1)), self.film.weight[:, self.level_dim :])

    def forward(self, noisy: Tensor, level: Tensor, prepared: Tensor) -> Tensor:
        """Return [B, length, action_dim]."""
        embedded = F.mish(self.embed(sinusoids(level, self.level_dim)))
        film = F.linear(embedded, self.film.weight[:, : self.level_dim], self.film.bias) + prepared
        films = iter(film.unsqueeze(-1).split(self._widths, 1))
        x, passed = noisy.transpose(1, 2), []
        for index, pair in enumerate(self.down):
            x = self._through(pair, x, films)
            if index < len(self.shrink):
                passed.append(x)
                x = self.shrink[index](x)
        passed.append(x)
        x = self._through(self.middle, x, films)
        for pair, grow in zip(self.up, self.grow, strict=True):
            x = grow(self._through(pair, torch.cat([x, passed.pop()], 1), films))
        return in_float32(self.head, self.last(x)).transpose(1, 2)

    def _pair(self, input_dim: int, output_dim: int) -> nn.ModuleList:
        blocks = (FilmBlock(width, output_dim, *self._sizes) for width in (input_dim, output_dim))
        return nn.ModuleList(blocks)

    def _blocks(self) -> list[FilmBlock]:
        """Return the blocks in the order in which they run."""
        pairs = [*self.down, self.middle, *self.up]
        return [block for pair in pairs for block in pair]

    @staticmethod
    def _through(pair: nn.Module, x: Tensor, films: Iterator[Tensor]) -> Tensor:
        assert isinstance(pair, nn.ModuleList)
        for block in pair:
            x = block(x, next(films))
        return x
