"""A variational autoencoder of single observations (Kingma and Welling, 2014), with a floor under its KL.

Convolutions for images, dense layers for vectors and choices, side by side in a dict: `WorldEncoder` and `WorldDecoder`
make them. With `strided` images and no norm they are those of World Models (Ha and Schmidhuber, 2018).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.layers import dense
from rl_lab.components.precision import in_float32
from rl_lab.components.scan import Fuse
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.core import Observation, Space, tree_map
from rl_lab.core.context import as_it_is
from rl_lab.core.ranges import Count, NonNegative, Positive


class Belief(NamedTuple):
    """A normal over latents [..., Z]."""

    mean: Tensor
    log_var: Tensor

    def sample(self) -> Tensor:
        """Draw latents; gradients flow through them."""
        return self.mean + (0.5 * self.log_var).exp() * torch.randn_like(self.mean)

    def kl(self) -> Tensor:
        """Return the KL [...] to a standard normal, in nats."""
        return 0.5 * (self.mean.square() + self.log_var.exp() - 1.0 - self.log_var).sum(-1)


class VAE(nn.Module):
    """Says in a few numbers what is seen.

    Args:
        encoder: From observations to features.
        decoder: From latents back to observations.
        latent_dim: Numbers of a latent.
        kl_floor: Nats per number of the latent below which nothing is learned from the KL.
        decoder_scale: Weight of the observations' loss; large where they are few numbers.
    """

    def __init__(
        self,
        encoder: WorldEncoder,
        decoder: WorldDecoder,
        latent_dim: Count = 32,
        *,
        kl_floor: NonNegative = 0.5,
        decoder_scale: Positive = 1.0,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.latent_dim = encoder, decoder, latent_dim
        self.floor, self.decoder_scale = kl_floor * latent_dim, decoder_scale

    def bind(self, space: Space, fuse: Fuse = as_it_is) -> None:
        """Make the layers for these observations; `fuse` makes kernels of the losses."""
        self.encoder.key = "components.vae.encoder"
        self.encoder.bind(space)
        self.head = dense(self.encoder.output_dim, 2 * self.latent_dim, self.encoder.style.init)
        self.decoder.bind(self.latent_dim, space)
        self.losses = fuse(self._losses)

    def forward(self, obs: Observation) -> Belief:
        """Return what observations with any leading dimensions say of latents, in float32."""
        return Belief(*in_float32(self.head, self.encoder(obs)).chunk(2, -1))

    def _losses(self, obs: Observation) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of observations [B, ...], and its terms."""
        belief = self(obs)
        kl = belief.kl()
        seen = {key: value.mean() for key, value in self.decoder.losses(belief.sample(), obs).items()}
        terms = {f"decoder_{key}_loss": self.decoder_scale * value for key, value in seen.items()}
        terms["kl_loss"] = kl.clamp(min=self.floor).mean()
        loss = torch.stack(list(terms.values())).sum()
        return loss, tree_map(Tensor.detach, terms | {"kl": kl.mean()})
