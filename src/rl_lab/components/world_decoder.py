"""What a world model says of an observation: the losses that teach its state, and pictures of what it dreams."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_lab.components.layers import STYLE, LayerStyle, Stack, dense, initialize
from rl_lab.components.observation import read_leaf
from rl_lab.components.world_encoder import by_name, split_leaves
from rl_lab.components.world_images import ImageDecoder, Images, layout_of, to_unit
from rl_lab.core import Box, Discrete, MultiDiscrete, Observation, Space, flat_dim
from rl_lab.core.ranges import Count, Natural
from rl_lab.ops.symlog import symexp
from rl_lab.ops.symlog import symlog as squashed

Choices = Discrete | MultiDiscrete


class WorldDecoder(nn.Module):
    """Predicts observations from features of the state.

    Numbers and images are predicted by their mean. With `symlog` the loss is the squared error to the squashed numbers
    and to the pixels (DreamerV3), without it half the squared error to both, as of a Gaussian of variance 1 (PlaNet,
    DreamerV1, V2). Choices are predicted by logits and cost their cross-entropy. Losses are sums over a part's numbers.

    Args:
        units: Width of the dense layers for vectors.
        num_layers: How many.
        style: Of all layers. With `strided` images it says which convolutions: padded with a norm, else unpadded.
        symlog: Predict squashed numbers, and count errors in full.
        images: strided (PlaNet, DreamerV1, V2, V3 of 2023) or pooled (V3 of 2024) convolutions.
        depth: Unit of the widths of convolutions.
        spatial_blocks: Blocks in which pooled convolutions begin to read the deterministic state.
    """

    def __init__(
        self,
        units: Count = 64,
        num_layers: Natural = 3,
        style: LayerStyle = STYLE,
        *,
        symlog: bool = True,
        images: Images = "pooled",
        depth: Count = 16,
        spatial_blocks: Count = 8,
    ) -> None:
        super().__init__()
        self.units, self.num_layers, self.style = units, num_layers, style
        self.use_symlog, self.layout = symlog, layout_of(images, self.style.norm)
        self.depth, self.spatial_blocks = depth, spatial_blocks
        self.error_scale = 1.0 if symlog else 0.5
        self.feature_dim = 0  # until `bind`

    def bind(self, feature_dim: int, space: Space, deter_dim: int = 0) -> None:
        """Make the layers for these observations; the first `deter_dim` features are the deterministic state."""
        assert self.feature_dim == 0, "a decoder is bound once"
        self.feature_dim, self.space, self.leaves = feature_dim, space, split_leaves(space)
        self.vector_leaves: dict[str, Box | Choices] = {**self.leaves.numbers, **self.leaves.choices}
        self.sizes = [flat_dim(leaf) for leaf in self.vector_leaves.values()]
        self.vectors = self._vector_layers() if self.sizes else None
        self.images = nn.ModuleList(self._image_layers(leaf, deter_dim) for leaf in self.leaves.images.values())

    def losses(self, features: Tensor, obs: Observation) -> dict[str, Tensor]:
        """Return a loss [...] for each part of the observations that belong to features [..., F]."""
        parts, losses = by_name(self.space, obs), {}
        for key, output in self._outputs(features).items():
            if key in self.leaves.choices:
                losses[key] = cross_entropy(self.leaves.choices[key], output, parts[key])
            else:
                losses[key] = self.error_scale * self._squares(key, output, parts[key]).sum(self._dims(key))
        return losses

    def errors(self, features: Tensor, obs: Observation) -> dict[str, Tensor]:
        """Return the error [...] of each part: the mean of squares that losses see, or the share of wrong choices."""
        parts, errors = by_name(self.space, obs), {}
        for key, output in self._outputs(features).items():
            if key in self.leaves.choices:
                errors[key] = wrong_choices(self.leaves.choices[key], output, parts[key])
            else:
                errors[key] = self._squares(key, output, parts[key]).mean(self._dims(key))
        return errors

    def _squares(self, key: str, output: Tensor, part: Tensor) -> Tensor:
        """Return the squared errors of a part's numbers, or pixels."""
        if key in self.leaves.images:
            return (output - to_unit(part)).square()
        target = read_leaf(self.leaves.numbers[key], part)
        return (output - (squashed(target) if self.use_symlog else target)).square()

    def _dims(self, key: str) -> tuple[int, ...]:
        return (-3, -2, -1) if key in self.leaves.images else (-1,)

    def predict(self, features: Tensor) -> Observation:
        """Return the expected observation: numbers, the likeliest choices, and images as floats in 0..1."""
        predictions = {key: self._reading(key, output) for key, output in self._outputs(features).items()}
        if isinstance(self.space, Mapping):
            return predictions
        (prediction,) = predictions.values()
        return prediction

    def _outputs(self, features: Tensor) -> dict[str, Tensor]:
        """Return what the layers say of every part, in float32."""
        outputs = {key: image(features) for key, image in zip(self.leaves.images, self.images, strict=True)}
        if self.vectors is not None:
            outputs.update(zip(self.vector_leaves, self.vectors(features).float().split(self.sizes, -1), strict=True))
        return outputs

    def _reading(self, key: str, output: Tensor) -> Tensor:
        if key in self.leaves.images:
            return output.clamp(0.0, 1.0)
        if key in self.leaves.choices:
            return likeliest(self.leaves.choices[key], output)
        numbers = symexp(output) if self.use_symlog else output
        return numbers.reshape(*output.shape[:-1], *self.leaves.numbers[key].shape)

    def _vector_layers(self) -> nn.Module:
        stack = Stack(self.feature_dim, self.units, self.num_layers, self.style)
        head = dense(stack.output_dim, sum(self.sizes), self.style.init)
        for rows in head.weight.detach().split(self.sizes):  # one layer for speed, begun as one for each part
            initialize(rows, stack.output_dim, len(rows), self.style.init)
        return nn.Sequential(stack, head)

    def _image_layers(self, leaf: Box, deter_dim: int) -> ImageDecoder:
        return ImageDecoder(
            leaf.shape,
            self.layout,
            self.depth,
            self.style,
            feature_dim=self.feature_dim,
            deter_dim=deter_dim,
            units=self.units,
            num_blocks=self.spatial_blocks,
        )


def _groups(space: Choices, logits: Tensor) -> tuple[Tensor, ...]:
    """Return the logits of each choice."""
    return (logits,) if isinstance(space, Discrete) else logits.split(space.nvec, -1)


def cross_entropy(space: Choices, logits: Tensor, choices: Tensor) -> Tensor:
    """Return the loss [...] of logits [..., sum of n] for choices, summed over them."""
    log_probs = torch.cat([group.log_softmax(-1) for group in _groups(space, logits)], -1)
    return -(log_probs * read_leaf(space, choices)).sum(-1)


def wrong_choices(space: Choices, logits: Tensor, choices: Tensor) -> Tensor:
    """Return the share [...] of choices that are not the likeliest ones."""
    is_wrong = (likeliest(space, logits) != choices).float()
    return is_wrong if isinstance(space, Discrete) else is_wrong.mean(-1)


def likeliest(space: Choices, logits: Tensor) -> Tensor:
    """Return the choices of the largest logits."""
    best = [group.argmax(-1) for group in _groups(space, logits)]
    return best[0] if isinstance(space, Discrete) else torch.stack(best, -1)
