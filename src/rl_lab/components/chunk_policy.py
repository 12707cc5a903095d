"""A policy that draws chunks of actions: what was seen becomes features, and a generator draws actions given them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from rl_lab.components.action_generators import ActionGenerator, ObservingDenoiser
from rl_lab.components.resnet import ResNet
from rl_lab.components.unit_range import ObservationRange
from rl_lab.core import ConfigError

Seen = tuple[Tensor, Mapping[str, Tensor]]  # vectors [B, history, D] and pictures [B, history, C, H, W] by name


class HistoryEncoder(nn.Module):
    """Puts vectors and the features of pictures side by side, for each observation of a history.

    Args:
        vector_dim: Numbers of a vector.
        pictures: Shapes of pictures by name.
        encoder: Of pictures; each camera gets one of its own.
    """

    def __init__(self, vector_dim: int, pictures: Mapping[str, tuple[int, ...]], encoder: nn.Module | None) -> None:
        super().__init__()
        self.names, self.encoders = tuple(pictures), nn.ModuleList()
        self.output_dim = vector_dim
        for name, shape in pictures.items():
            if not isinstance(encoder, ResNet):
                raise ConfigError(f"components.encoder: the picture {name!r} of the environment needs one (ResNet)")
            own = deepcopy(encoder)
            own.bind(shape)
            self.encoders.append(own)
            self.output_dim += own.output_dim

    def forward(self, seen: Seen, *, augment: bool = False) -> Tensor:
        """Return features [B, history, output_dim]."""
        vectors, pictures = seen
        encoded = [
            encode(pictures[name], augment=augment) for name, encode in zip(self.names, self.encoders, strict=True)
        ]
        return torch.cat([vectors, *encoded], -1)


class AsSeen(nn.Module):
    """Hands on what was seen, to a network that reads it itself."""

    def forward(self, seen: Seen, *, augment: bool = False) -> Seen:
        """Return vectors and pictures."""
        return seen


class ChunkPolicy(nn.Module):
    """All that learns, and whose weights are averaged.

    Args:
        encoder: Of what was seen.
        generator: Of actions.
    """

    def __init__(self, encoder: HistoryEncoder | AsSeen, generator: ActionGenerator) -> None:
        super().__init__()
        self.encoder, self.generator = encoder, generator

    def loss(self, seen: Seen, actions: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss of actions [B, length, action_dim] in [-1, 1]."""
        return self.generator.loss(self.encoder(seen, augment=True), actions, weights)

    def sample(self, seen: Seen, noise: Tensor, beside: Tensor | None = None) -> Tensor:
        """Return actions drawn out of noise [B, length, action_dim], and `beside` it [B, length, padding]."""
        return self.generator.sample(self.encoder(seen), noise, beside)

    def base(self) -> dict[str, nn.Parameter]:
        """Return what actions depend on and does not learn, by name."""
        network = self.generator.network
        unread = set(network.unread()) if isinstance(network, ObservingDenoiser) else set()
        frozen = {name: each for name, each in self.named_parameters() if not each.requires_grad}
        return {name: each for name, each in frozen.items() if each not in unread}


def bound_policy(
    components: Mapping[str, nn.Module], seen: ObservationRange, *, action_dim: int, length: int, history: int
) -> ChunkPolicy:
    """Return the policy of the components `generator` and, where it is needed, `encoder`, bound to a task."""
    generator = components["generator"]
    if not isinstance(generator, ActionGenerator):
        raise ConfigError("components.generator: needs an ActionGenerator (choices: Diffusion, FlowMatching)")
    network = generator.network
    if isinstance(network, ObservingDenoiser):
        network.bind_observations(seen.vector_dim, seen.pictures)
        network.bind(action_dim, length, seen.vector_dim, history)
        return ChunkPolicy(AsSeen(), generator)
    encoder = HistoryEncoder(seen.vector_dim, seen.pictures, components.get("encoder") if seen.pictures else None)
    network.bind(action_dim, length, encoder.output_dim, history)
    return ChunkPolicy(encoder, generator)
