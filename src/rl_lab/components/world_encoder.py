"""What a world model reads of an observation: vectors by dense layers, images by convolutions, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.layers import STYLE, LayerStyle, Stack
from rl_lab.components.observation import is_image, read_leaf
from rl_lab.components.world_images import ImageEncoder, Images, layout_of
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, MultiDiscrete, Observation, Space, flat_dim
from rl_lab.core.ranges import Count, Natural
from rl_lab.ops.symlog import symlog as squashed


class Leaves(NamedTuple):
    """The parts of an observation space by how they are read; one that is no dict is called `image` or `vector`."""

    numbers: dict[str, Box]
    choices: dict[str, Discrete | MultiDiscrete]
    images: dict[str, Box]


def split_leaves(space: Space) -> Leaves:
    """Sort the leaves of a space; the mask of allowed actions is no part of the world."""
    leaves = Leaves({}, {}, {})
    for key, leaf in (space if isinstance(space, Mapping) else {lone_name(space): space}).items():
        if key == ACTION_MASK:
            continue
        if not isinstance(leaf, Box):
            leaves.choices[key] = leaf
        else:
            (leaves.images if is_image(leaf) else leaves.numbers)[key] = leaf
    if not any(leaves):
        raise ConfigError("environment: the observation has no part that a world model could learn")
    return leaves


def lone_name(space: Space) -> str:
    """Return what an observation without keys is called."""
    return "image" if is_image(space) else "vector"


def by_name(space: Space, obs: Observation) -> Mapping[str, Tensor]:
    """Return the parts of an observation by their names."""
    return {lone_name(space): obs} if isinstance(obs, Tensor) else obs


class WorldEncoder(nn.Module):
    """Turns observations into tokens.

    Args:
        units: Width of the dense layers for vectors.
        num_layers: How many.
        style: Of all layers. With `strided` images it says which convolutions: padded with a norm, else unpadded.
        symlog: Squash the numbers of vectors first (DreamerV3).
        images: strided (PlaNet, DreamerV1, V2, V3 of 2023) or pooled (V3 of 2024) convolutions.
        depth: Unit of the widths of convolutions.

    Attributes:
        key: Its place in the config, for errors.
    """

    key = "components.world_model.encoder"

    def __init__(
        self,
        units: Count = 64,
        num_layers: Natural = 3,
        style: LayerStyle = STYLE,
        *,
        symlog: bool = True,
        images: Images = "pooled",
        depth: Count = 16,
    ) -> None:
        super().__init__()
        self.units, self.num_layers, self.style, self.depth = units, num_layers, style, depth
        self.use_symlog, self.layout = symlog, layout_of(images, self.style.norm)
        self.output_dim = 0  # until `bind`

    def bind(self, space: Space) -> None:
        """Make the layers that these observations need."""
        assert self.output_dim == 0, "an encoder is bound once"
        self.space, self.leaves = space, split_leaves(space)
        vector_dim = flat_dim({**self.leaves.numbers, **self.leaves.choices})
        self.vectors = Stack(vector_dim, self.units, self.num_layers, self.style) if vector_dim else None
        self.images = nn.ModuleList(
            ImageEncoder(leaf.shape, self.layout, self.depth, self.style, self.key)
            for leaf in self.leaves.images.values()
        )
        self.output_dim = 0 if self.vectors is None else self.vectors.output_dim
        self.output_dim += sum(image.output_dim for image in self.images)  # type: ignore[misc]

    def forward(self, obs: Observation) -> Tensor:
        """Return tokens [..., output_dim] of observations with any leading dimensions."""
        parts = by_name(self.space, obs)
        tokens = [encoder(parts[key]) for key, encoder in zip(self.leaves.images, self.images, strict=True)]
        if self.vectors is not None:
            tokens.insert(0, self.vectors(self._vector(parts)))
        return tokens[0] if len(tokens) == 1 else torch.cat(tokens, -1)

    def _vector(self, parts: Mapping[str, Tensor]) -> Tensor:
        choices = [read_leaf(leaf, parts[key]) for key, leaf in self.leaves.choices.items()]
        if not self.leaves.numbers:
            return torch.cat(choices, -1)
        numbers = torch.cat([read_leaf(leaf, parts[key]) for key, leaf in self.leaves.numbers.items()], -1)
        return torch.cat([squashed(numbers) if self.use_symlog else numbers, *choices], -1)
