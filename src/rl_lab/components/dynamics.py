"""What a world model asks of its dynamics: states that are filtered where there are observations, else imagined."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.latents import LatentSpace
from rl_lab.components.scan import Fuse
from rl_lab.core.context import as_it_is


class Latent(NamedTuple):
    """A state, with any leading dimensions."""

    deter: Tensor  # [..., D]
    stoch: Tensor  # [..., Z]


class Observed(NamedTuple):
    """What filtering a sequence brought."""

    latents: Latent  # [T, B, ...]
    posterior: Tensor  # beliefs [T, B, ...] with the observations
    prior: Tensor  # and without them


class Dynamics(nn.Module):
    """States with a deterministic part and one that is drawn, and how they follow each other."""

    deter_dim: int  # numbers of the deterministic part
    latent_space: LatentSpace  # of the part that is drawn

    @abstractmethod
    def bind(self, token_dim: int, action_dim: int, fuse: Fuse = as_it_is) -> None:
        """Make the layers; `fuse` makes kernels of the steps."""

    @property
    def feature_dim(self) -> int:
        """Return the numbers that heads read."""
        return self.deter_dim + self.latent_space.dim

    @staticmethod
    def features(latent: Latent) -> Tensor:
        """Return what heads read of a state."""
        return torch.cat([latent.deter, latent.stoch], -1)

    @abstractmethod
    def initial(self, batch: int, device: torch.device) -> Latent:
        """Return the states [batch, ...] at an episode's start."""

    @abstractmethod
    def observe(self, tokens: Tensor, actions: Tensor, is_first: Tensor, start: Latent) -> Observed:
        """Filter tokens [T, B, E]; actions [T, B, A] led to them, `start` [B, ...] is the state before the first."""

    @abstractmethod
    def observe_step(self, latent: Latent, action: Tensor, token: Tensor, is_first: Tensor) -> Latent:
        """Return the state [B, ...] after one observation; at an episode's start what came before is forgotten."""

    @abstractmethod
    def imagine_step(self, latent: Latent, action: Tensor, noise: Tensor | None = None) -> Latent:
        """Return a state that may follow an action [B, A]; `noise` of the latent space, None: drawn here."""

    @abstractmethod
    def imagine(self, start: Latent, actions: Tensor) -> Latent:
        """Return the states [H, B, ...] that may follow actions [H, B, A] from states [B, ...]."""
