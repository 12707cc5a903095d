"""The representation that is none: what is seen is the state, for vectors that tell all there is to know."""

from __future__ import annotations

from torch import Tensor, nn

from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder, split_leaves
from rl_lab.components.world_images import ImageDecoder
from rl_lab.core import Box, ConfigError, Space

NO_IMAGES = "an image is no state, one must be learned of it (choices: WorldEncoder with WorldDecoder)"


class IdentityEncoder(WorldEncoder):
    """Passes numbers through as they are, and choices as one-hots."""

    def __init__(self) -> None:
        super().__init__(num_layers=0, symlog=False)

    def bind(self, space: Space) -> None:
        """Take note of what is seen."""
        if split_leaves(space).images:
            raise ConfigError(f"components.world_model.encoder: {NO_IMAGES}")
        super().bind(space)


class IdentityDecoder(WorldDecoder):
    """Reads observations off states that begin with them; learns nothing."""

    def __init__(self) -> None:
        super().__init__(symlog=False)

    def _vector_layers(self) -> nn.Module:
        count = sum(self.sizes)
        if count > self.feature_dim:
            raise ConfigError(
                f"components.world_model.decoder: a state of {self.feature_dim} numbers cannot begin with an "
                f"observation of {count} (IdentityDecoder goes with IdentityEncoder and MLPDynamics)"
            )
        return First(count)

    def _image_layers(self, leaf: Box, deter_dim: int) -> ImageDecoder:
        raise ConfigError(f"components.world_model.decoder: {NO_IMAGES}")


class First(nn.Module):
    """Takes the first of some numbers.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers [..., count] of `x` [..., n]."""
        return x[..., : self.count]
