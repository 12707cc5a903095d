"""What diffusion and flow matching share: actions are drawn out of noise by a network that is asked repeatedly.

A generator says what the network learns (`loss`) and how noise becomes actions (`sample`); the network may be any that
reads noisy actions, a level of noise and what was seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.core.shards import Block


class Denoiser(nn.Module, ABC):
    """A network that reads noisy actions; its output has their shape."""

    padding = 0  # numbers beside an action's own that the network reads: noise where there is noise, else 0

    def bind(self, action_dim: int, length: int, feature_dim: int, history: int) -> None:
        """Make the layers: for chunks of so many actions, and so many features of each observation of the history."""

    def shardable(self) -> Iterable[Block]:
        """Return the parts that hold most of the weights and compute one after another."""
        return ()

    def prepare(self, condition: Any) -> Any:
        """Return what forward needs of the condition: computed once, however often noise is taken away."""
        return condition

    def undecayed(self) -> Iterable[nn.Parameter]:
        """Return parameters that weight decay leaves alone."""
        return ()

    @abstractmethod
    def forward(self, noisy: Tensor, level: Tensor, prepared: Any) -> Tensor:
        """Return [B, length, action_dim] for noisy actions of that shape; `level` [B] or [1] is 0 without noise."""


class ObservingDenoiser(Denoiser):
    """One that reads what was seen itself: vectors [B, history, D] and pictures by name, with no encoder before it."""

    @abstractmethod
    def bind_observations(self, vector_dim: int, pictures: Mapping[str, tuple[int, ...]]) -> None:
        """Take the numbers of a vector and the shapes of pictures [C, H, W], before `bind`."""

    def unread(self) -> Iterable[nn.Parameter]:
        """Return parameters that no action depends on."""
        return ()


class ActionGenerator(nn.Module, ABC):
    """Learns and draws chunks of actions, each number of them in [-1, 1].

    Args:
        network: Reads noisy actions.
    """

    def __init__(self, network: Denoiser) -> None:
        super().__init__()
        self.network = network

    @abstractmethod
    def loss(self, condition: Any, actions: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss of actions [B, length, action_dim], each step weighted by `weights` [B, length]."""

    @abstractmethod
    def sample(self, condition: Any, noise: Tensor, beside: Tensor | None = None) -> Tensor:
        """Return actions for a condition, drawn out of standard normal noise of their shape.

        `beside` is noise for the numbers beside an action's own (`Denoiser.padding`); None: it is drawn.
        """


def weighted_squared_error(found: Tensor, wanted: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean squared error of [B, length, dim], the steps weighted by `weights` [B, length]."""
    errors = (found.float() - wanted).square()
    if weights is None:
        return errors.mean()
    return (errors.mean(-1) * weights).sum() / weights.sum().clamp(min=1.0)


def sinusoids(level: Tensor, dim: int, scale: float = 100.0, longest: float = 10_000.0) -> Tensor:
    """Return sines and cosines [B, dim] of levels [B] in [0, 1]; those of DDPM's hundred steps."""
    exponents = torch.arange(dim // 2, device=level.device) / max(1, dim // 2 - 1)
    angles = scale * level[:, None].float() * longest**-exponents
    return torch.cat([angles.sin(), angles.cos()], -1)
