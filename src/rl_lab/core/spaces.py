"""What observations and actions look like: shapes and types, without an environment behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Box:
    """An array of numbers; images are `uint8` with shape [C, H, W]."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Discrete:
    """One of `n` choices, an `int64` scalar."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices, an `int64` vector of length `len(nvec)`."""

    nvec: tuple[int, ...]


Leaf = Box | Discrete | MultiDiscrete
Space = Leaf | Mapping[str, Leaf]


def flat_dim(space: Space) -> int:
    """Return how many numbers a network reads (observation) or writes (action parameters) for this space."""
    if isinstance(space, Mapping):
        return sum(flat_dim(leaf) for key, leaf in space.items() if key != ACTION_MASK)
    if isinstance(space, Discrete):
        return space.n
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec)
    return math.prod(space.shape)


ACTION_MASK = "action_mask"  # key of a dict observation: True where an action is allowed, [N, flat_dim(action)]


@dataclass(frozen=True)
class EnvSpec:
    """What a workflow may know of an environment."""

    id: str
    observation: Space
    action: Leaf
    max_episode_steps: int | None = None
    exact_resume: bool = True  # False: the state of a running episode cannot be restored
    action_repeat: int = 1  # frames per env step
