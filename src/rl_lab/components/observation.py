"""How a space's observations become what a network reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.memory import Memory
from rl_lab.components.mlp import MLP
from rl_lab.core import (
    ACTION_MASK,
    Box,
    ConfigError,
    Discrete,
    MultiDiscrete,
    Observation,
    Space,
    flat_dim,
    leaves_of,
    unknown_name,
)


def read_leaf(space: Box | Discrete | MultiDiscrete, x: Tensor) -> Tensor:
    """Return one-hot floats for choices, images as they are, and other arrays flat and as float32."""
    if isinstance(space, Discrete):
        return F.one_hot(x.long(), space.n).float()
    if isinstance(space, MultiDiscrete):
        return torch.cat([F.one_hot(x[..., i].long(), n) for i, n in enumerate(space.nvec)], -1).float()
    if is_image(space):
        return x
    flat = x if len(space.shape) == 1 else x.reshape(*x.shape[: x.ndim - len(space.shape)], -1)
    return flat.to(torch.float32)


def is_image(space: Space) -> bool:
    """Return whether this is an array that a CNN should see as it is."""
    return isinstance(space, Box) and len(space.shape) == 3


def action_mask(obs: Observation) -> Tensor | None:
    """Return what an observation says of which choices are allowed [N, choices]."""
    return None if isinstance(obs, Tensor) or ACTION_MASK not in obs else obs[ACTION_MASK].bool()


class ObservationReader:
    """Splits an observation into network input and action mask.

    Args:
        space: The environment's observation space.
        keep_dict: Whether a dict stays a dict (an encoder reads it) or its keys are concatenated in order.
    """

    def __init__(self, space: Space, *, keep_dict: bool) -> None:
        self.space, self.keep_dict = space, keep_dict
        self.has_mask = isinstance(space, Mapping) and ACTION_MASK in space
        self.is_vector = not (keep_dict if isinstance(space, Mapping) else is_image(space))
        self.dim = flat_dim(space)
        if isinstance(space, Mapping) and not keep_dict and any(is_image(leaf) for leaf in space.values()):
            raise ConfigError("components.encoder: a dict observation with images needs one (DictEncoder)")

    def __call__(self, obs: Observation) -> tuple[Any, Tensor | None]:
        """Return the input of the first network and the mask of allowed actions, or None."""
        if isinstance(obs, Tensor):
            return read_leaf(self.space, obs), None  # type: ignore[arg-type]
        assert isinstance(self.space, Mapping)
        parts = {key: read_leaf(leaf, obs[key]) for key, leaf in self.space.items() if key != ACTION_MASK}
        return parts if self.keep_dict else torch.cat(list(parts.values()), -1), action_mask(obs)


def reject_readers(reader: ObservationReader, encoder: nn.Module | None, memory: Memory | None) -> None:
    """Raise when an encoder of vectors, or a memory, does not read what it will be given."""
    if isinstance(encoder, MLP) and reader.is_vector and encoder.input_dim != reader.dim:
        given = f"{reader.dim} numbers of the observation"
        raise ConfigError(f"components.encoder.input_dim: must be {reader.dim} ({given}), not {encoder.input_dim}")
    if memory is not None and memory.input_dim is not None:
        given = "numbers of the observation" if encoder is None else "features of the encoder"
        width = reader.dim if encoder is None else int(encoder.output_dim)  # type: ignore[arg-type]
        if memory.input_dim != width:
            raise ConfigError(f"components.memory.input_dim: must be {width} ({width} {given}), not {memory.input_dim}")


class VectorReader:
    """Reads one vector [..., dim] of an observation: one key of a dict, or all that is no mask.

    Args:
        space: The environment's observation space.
        key: Which part of a dict; None: everything.
        path: Who asks, for errors.
    """

    def __init__(self, space: Space, key: str | None, path: str) -> None:
        leaves = leaves_of(space)
        if key is not None and not isinstance(space, Mapping):
            raise ConfigError(f"{path}.key: the observation has no key {key!r}, it is one array (set null)")
        if key is not None and key not in leaves:
            raise ConfigError(f"{path}.key: " + unknown_name("observation", key, leaves))
        part = space if key is None else leaves[key]
        if any(is_image(leaf) for leaf in leaves_of(part).values()):
            raise ConfigError(f"{path}: reads vectors, not images")
        self._key, self._read = key, ObservationReader(part, keep_dict=False)
        self.dim = self._read.dim

    def __call__(self, obs: Observation) -> Tensor:
        """Return the vectors [..., dim]."""
        return self._read(obs if self._key is None else obs[self._key])[0]  # type: ignore[index]
