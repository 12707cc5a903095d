"""How far a task has come, seen from one observation: pictures and vectors to the logits of a few classes.

After the reward classifier of HIL-SERL (Luo et al., 2024), with a network of its own for each camera. It knows its own
sizes as a buffer beside its weights: whoever has these can make it anew, without the config it was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.normalizer import RunningNormalizer
from rl_lab.components.observation import is_image
from rl_lab.components.resnet import ResNet
from rl_lab.core import Box, ConfigError, Observation, Space, leaves_of, unknown_name
from rl_lab.core.ranges import Count, UnitInterval
from rl_lab.core.seeding import isolated_rng

Shapes = Mapping[str, Sequence[int]]  # of the observations that are read, by name; "" where there is but one


class Classifier(nn.Module):
    """Observation -> logits [B, num_classes]; the last class is success, those before it are parts of the way.

    Args:
        num_classes: 2: success or not; more: progress.
        keys: Observations that are read; null: all.
        channels: Of each stage of a camera's network.
        num_features: Of each camera.
        hidden_dims: Width of each layer behind them.
        dropout: Share of what the layers put out that training drops.
    """

    layout: Tensor

    def __init__(
        self,
        num_classes: Count = 2,
        keys: Sequence[str] | None = None,
        channels: Sequence[int] = (16, 32, 64),
        num_features: Count = 64,
        hidden_dims: Sequence[int] = (256,),
        dropout: UnitInterval = 0.1,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise ConfigError(f"components.classifier.num_classes: must be 2 or more, not {num_classes}")
        self.num_classes, self.keys = num_classes, keys
        self.channels, self.num_features, self.hidden_dims = tuple(channels), num_features, tuple(hidden_dims)
        self.shapes: Shapes = {}
        self._dropout = dropout

    def bind(self, space: Space) -> None:
        """Make the layers for observations of this space."""
        leaves = leaves_of(space)
        for key in self.keys or ():
            if key not in leaves:
                raise ConfigError(unknown_name("key in components.classifier.keys", key, leaves))
        read = {name: leaf for name, leaf in leaves.items() if self.keys is None or name in self.keys}
        for name, leaf in read.items():
            if not isinstance(leaf, Box) or not (is_image(leaf) or len(leaf.shape) == 1):
                raise ConfigError(
                    f"components.classifier: {name or 'the observation'} is neither a vector nor a picture"
                )
        self._build({name: leaf.shape for name, leaf in read.items() if isinstance(leaf, Box)})

    def _build(self, shapes: Shapes) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.register_buffer("layout", torch.frombuffer(bytearray(self._layout()), dtype=torch.uint8))
        self.vectors = [name for name, shape in self.shapes.items() if len(shape) == 1]
        self.pictures = [name for name, shape in self.shapes.items() if len(shape) > 1]
        self.normalizers = nn.ModuleList(RunningNormalizer(self.shapes[name]) for name in self.vectors)
        self.cameras = nn.ModuleList(ResNet(self.channels, 1, output_dim=self.num_features) for _ in self.pictures)
        for name, camera in zip(self.pictures, self.cameras, strict=True):
            camera.bind(self.shapes[name])  # type: ignore[operator]
        width = sum(self.shapes[name][0] for name in self.vectors) + self.num_features * len(self.pictures)
        layers: list[nn.Module] = []
        for hidden in self.hidden_dims:
            layers += [nn.Linear(width, hidden), nn.Dropout(self._dropout), nn.LayerNorm(hidden), nn.ReLU()]
            width = hidden
        self.head = nn.Sequential(*layers, nn.Linear(width, self.num_classes))

    def _layout(self) -> bytes:
        """Return all that the layers are made from, as JSON."""
        sizes = {"num_classes": self.num_classes, "channels": self.channels, "num_features": self.num_features}
        return json.dumps({**sizes, "hidden_dims": self.hidden_dims, "shapes": self.shapes}).encode()

    def forward(self, obs: Observation) -> Tensor:
        """Return logits [B, num_classes]."""
        parts: Mapping[str, Any] = obs if isinstance(obs, Mapping) else {"": obs}
        vectors = [norm(parts[name].float()) for name, norm in zip(self.vectors, self.normalizers, strict=True)]
        seen = [camera(parts[name]) for name, camera in zip(self.pictures, self.cameras, strict=True)]
        return self.head(torch.cat([*vectors, *seen], -1))

    def measure(self, obs: Observation) -> None:
        """Learn what numbers vectors have."""
        parts: Mapping[str, Any] = obs if isinstance(obs, Mapping) else {"": obs}
        for name, normalizer in zip(self.vectors, self.normalizers, strict=True):
            normalizer.update(parts[name].float())  # type: ignore[operator]

    def chances(self, obs: Observation) -> Tensor:
        """Return the chance of each class, [B, num_classes]."""
        return self(obs).softmax(-1)

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor]) -> Classifier:
        """Return the classifier that these weights are of, ready to be asked; ConfigError when they are of none."""
        try:
            sizes = json.loads(bytes(weights["layout"].tolist()))
            shapes = sizes.pop("shapes")
            made = cls(**sizes, dropout=0.0)
            with isolated_rng(0):  # a run's random stream must not know that somebody was made within it
                made._build(shapes)
            made.load_state_dict(dict(weights))
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"these are no weights of a reward classifier: {text}") from error
        return made.train(False).requires_grad_(False)
