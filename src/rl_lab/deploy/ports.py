"""The inputs and outputs of an exported policy: names, shapes and what the numbers mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_lab.core.spaces import Box, Leaf, MultiDiscrete
from rl_lab.deploy.draws import Draw

Kind = Literal["observation", "state", "is_first", "noise", "action"]
Arrays = dict[str, npt.NDArray[Any]]  # by the names of ports
Bound = float | int | list[int] | None


@dataclass(frozen=True)
class Port:
    """One tensor that goes in or comes out, for a batch of one. Numbers are float32, but choices are int32.

    Args:
        name: In the file.
        kind: What it is.
        shape: With the leading 1 of the batch.
        dtype: In the file.
        holds: The type of these numbers in the lab, such as uint8 of pixels.
        low: Lowest value; None: no bound.
        high: Highest value; None: no bound.
        distribution: Of noise.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: Literal["float32", "int32"] = "float32"
    holds: str = "float32"
    low: Bound = None
    high: Bound = None
    distribution: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it without what does not apply."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Port:
        """Return what `to_json` was called on."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def read(self, given: Tensor) -> Tensor:
        """Return the file's numbers in the type that the lab computes with."""
        held: torch.dtype = vars(torch)[self.holds]
        if held is torch.bool:
            return given > 0.5
        return (given if held.is_floating_point else given.round()).to(held)

    def write(self, computed: Tensor) -> Tensor:
        """Return numbers of the lab in the type of the file."""
        return computed.to(vars(torch)[self.dtype])


def port_of_leaf(name: str, kind: Kind, leaf: Leaf) -> Port:
    """Return the port of an observation or of an action."""
    whole: Literal["float32", "int32"] = "int32" if kind == "action" else "float32"
    if isinstance(leaf, Box):
        holds = _name(leaf.dtype)
        dtype = "float32" if leaf.dtype.is_floating_point else whole
        return Port(name, kind, (1, *leaf.shape), dtype, holds, _finite(leaf.low), _finite(leaf.high))
    if isinstance(leaf, MultiDiscrete):
        highest = [count - 1 for count in leaf.nvec]
        return Port(name, kind, (1, len(leaf.nvec)), whole, "int64", [0] * len(leaf.nvec), highest)
    return Port(name, kind, (1,), whole, "int64", 0, leaf.n - 1)


def port_of_state(name: str, leaf: Tensor) -> Port:
    """Return the port of a part of the recurrent state."""
    return Port(name, "state", tuple(leaf.shape), holds=_name(leaf.dtype))


def port_of_draw(index: int, draw: Draw) -> Port:
    """Return the port of a random draw."""
    return Port(f"noise.{index}", "noise", draw.shape, distribution=draw.distribution)


def next_name(name: str) -> str:
    """Return what the output of a state is called whose input has this name."""
    return f"next_{name}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def to_arrays(named: Mapping[str, Tensor]) -> Arrays:
    """Return tensors as arrays that share nothing with them."""
    return {name: np.array(tensor.numpy(), copy=True) for name, tensor in named.items()}
