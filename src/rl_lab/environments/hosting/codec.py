"""Observations of gymnasium as plain arrays. Knows no torch, so that worker processes start light.

Box of floats or other numbers -> float32; uint8 images [H, W, C] or [H, W] -> uint8 [C, H, W]; Discrete and
MultiDiscrete -> (concatenated) one-hots, float32; MultiBinary -> float32; Dict -> one array per key, of which
`action_mask` is bool; Tuple -> one array per index, "0", "1", ...; nested ones have dotted names, "camera.rgb".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.environments.hosting.foreign import BadOutcome

Array = NDArray[Any]
Arrays = dict[str, Array]  # leaf name -> array with leading dimension num_envs
OBSERVATION = ""  # leaf name of an observation that is not a dict
MASK = "action_mask"
Structure = str | tuple["Structure", ...] | Mapping[str, "Structure"]  # a leaf's name, or the parts of a space


class UnsupportedSpace(TypeError):
    """A space the lab has no tensor for."""


@dataclass(frozen=True)
class LeafCodec:
    """One observation array: its shape and type here, and how it comes from the environment's value."""

    source: tuple[int, ...]  # shape as the environment gives it
    shape: tuple[int, ...]
    dtype: type[np.generic]
    convert: Callable[[Array], Array] | None = None

    def write(self, rows: Array, row: int, value: Any) -> None:
        """Write the environment's value into one row."""
        if type(value) is not np.ndarray:
            value = np.asarray(value)
        if value.shape != self.source:
            raise BadOutcome(f"returned an observation of shape {value.shape} instead of {self.source}")
        rows[row] = value if self.convert is None else self.convert(value)


@dataclass(frozen=True)
class OneHot:
    """Concatenated one-hots of integers that start at `start`."""

    sizes: tuple[int, ...]
    start: Array

    def __call__(self, value: Array) -> Array:
        """Return [sum(sizes)] float32."""
        out = np.zeros(sum(self.sizes), dtype=np.float32)
        offsets = np.cumsum((0, *self.sizes[:-1]))
        index = np.ravel(value - self.start)
        if (index < 0).any() or (index >= self.sizes).any():
            raise BadOutcome(f"returned the observation {value} outside its space of {list(self.sizes)} values")
        out[offsets + index] = 1.0
        return out


def channels_first(image: Array) -> Array:
    """Return [C, H, W] of [H, W, C] or [H, W]."""
    return image.transpose(2, 0, 1) if image.ndim == 3 else image[None]


@dataclass(frozen=True)
class ObservationCodec:
    """All arrays of an observation; one under the empty name when it is neither a dict nor a tuple."""

    leaves: Mapping[str, LeafCodec]
    structure: Structure = OBSERVATION

    @property
    def is_dict(self) -> bool:
        """Return whether the observation is a dict of tensors."""
        return OBSERVATION not in self.leaves

    def empty(self, num_envs: int) -> Arrays:
        """Return new, uninitialised arrays for `num_envs` rows."""
        return {name: np.empty((num_envs, *leaf.shape), leaf.dtype) for name, leaf in self.leaves.items()}

    @property
    def write(self) -> Callable[[Any, int, Any], None]:
        """Return the function that writes one environment's observation into one row of a `target`."""
        return self._write_dict if self.is_dict else self.leaves[OBSERVATION].write

    def target(self, arrays: Arrays) -> Any:
        """Return what `write` writes into: a single array is taken out of its dict once per step, not per row."""
        return arrays if self.is_dict else arrays[OBSERVATION]

    def _write_dict(self, arrays: Arrays, row: int, value: Any) -> None:
        self._write_part(self.structure, arrays, row, value)

    def _write_part(self, structure: Structure, arrays: Arrays, row: int, value: Any) -> None:
        if isinstance(structure, str):
            self.leaves[structure].write(arrays[structure], row, value)
        elif isinstance(structure, tuple):
            if not isinstance(value, tuple | list) or len(value) != len(structure):
                raise BadOutcome(f"returned {_shape_of(value)} as observation instead of {len(structure)} parts")
            for part, entry in zip(structure, value, strict=True):
                self._write_part(part, arrays, row, entry)
        else:
            if not isinstance(value, Mapping) or value.keys() != structure.keys():
                raise BadOutcome(f"returned {_shape_of(value)} as observation instead of keys {sorted(structure)}")
            for key, part in structure.items():
                self._write_part(part, arrays, row, value[key])


def _shape_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"keys {sorted(value)}"
    return f"{len(value)} parts" if isinstance(value, tuple | list) else f"a {type(value).__name__}"


def is_finite(array: Array) -> bool:
    """Return whether no float is NaN or infinite."""
    if array.dtype != np.float32:
        return True
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())  # the first is twice as fast


def observation_codec(space: spaces.Space[Any]) -> ObservationCodec:
    """Return the codec of an observation space; raises UnsupportedSpace."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return ObservationCodec({OBSERVATION: _leaf_codec(space)})
    leaves: dict[str, LeafCodec] = {}
    structure = _flatten(space, OBSERVATION, leaves)
    if not leaves:
        raise UnsupportedSpace(f"{space}, which holds nothing to observe")
    return ObservationCodec(leaves, structure)


def _flatten(space: spaces.Space[Any], name: str, leaves: dict[str, LeafCodec]) -> Structure:
    """Add the leaves of a space under their dotted names and return where they belong."""
    prefix = f"{name}." if name else ""
    if isinstance(space, spaces.Tuple):
        return tuple(_flatten(part, f"{prefix}{index}", leaves) for index, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: _flatten(part, f"{prefix}{key}", leaves) for key, part in space.spaces.items()}
    if name in leaves or name == OBSERVATION:
        raise UnsupportedSpace(f"{space} under a name that is empty or there twice, {name!r}")
    leaves[name] = _mask_codec(space) if name == MASK else _leaf_codec(space)
    return name


def _mask_codec(space: spaces.Space[Any]) -> LeafCodec:
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise UnsupportedSpace(f"{space} as {MASK}, which must be a Box or MultiBinary of zeros and ones")
    return LeafCodec(space.shape, (math.prod(space.shape),), np.bool_, np.ravel)


def _leaf_codec(space: spaces.Space[Any]) -> LeafCodec:
    if isinstance(space, spaces.Discrete):
        return LeafCodec((), (int(space.n),), np.float32, OneHot((int(space.n),), np.asarray(space.start)))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        return LeafCodec(space.shape, (sum(sizes),), np.float32, OneHot(sizes, space.start))
    if isinstance(space, spaces.MultiBinary):
        return LeafCodec(space.shape, space.shape, np.float32)
    if not isinstance(space, spaces.Box):
        raise UnsupportedSpace(
            f"{space}; an observation is a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them"
        )
    shape = space.shape
    is_image = space.dtype == np.uint8 and len(shape) in (2, 3)
    if is_image and len(shape) == 2:
        return LeafCodec(shape, (1, *shape), np.uint8, channels_first)
    if is_image and shape[2] <= shape[0]:  # channels, stacked frames too, are fewer than rows; else they come first
        return LeafCodec(shape, (shape[2], shape[0], shape[1]), np.uint8, channels_first)
    return LeafCodec(shape, shape, np.uint8 if space.dtype == np.uint8 and len(shape) > 1 else np.float32)
