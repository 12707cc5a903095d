"""Simplicial normalisation (Lavoie et al., 2023, https://arxiv.org/abs/2204.00616) keeps latent states bounded."""

from __future__ import annotations

from torch import Tensor, nn

from rl_lab.components.layers import LayerStyle, dense, norm_layer
from rl_lab.core import ConfigError


class SimNorm(nn.Module):
    """Softmax over groups of neighbours: every group is a point of a simplex.

    Args:
        group_size: Numbers of a group.
    """

    def __init__(self, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` [..., n] with positive numbers that sum to 1 in every group."""
        return x.unflatten(-1, (-1, self.group_size)).softmax(-1).flatten(-2)


def sim_norm(latent_dim: int, group_size: int | None) -> nn.Module:
    """Return the normalisation of latent states; without groups there is none."""
    if group_size is None:
        return nn.Identity()
    if latent_dim % group_size:
        raise ConfigError(
            f"components.world_model.group_size: groups of {group_size} do not divide latent_dim={latent_dim}"
        )
    return SimNorm(group_size)


def to_latent(input_dim: int, latent_dim: int, style: LayerStyle, group_size: int | None) -> nn.Module:
    """Return the last layer of what puts out latent states: linear, normalised as its style and its groups say."""
    layer, norm = dense(input_dim, latent_dim, style.init), norm_layer(style.norm, latent_dim)
    return nn.Sequential(layer, norm, sim_norm(latent_dim, group_size))
