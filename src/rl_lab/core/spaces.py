"""What observations and actions look like: shapes and types, without an environment behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rl_lab.core.errors import ConfigError


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


def leaves_of(space: Space) -> dict[str, Leaf]:
    """Return the leaves of a space by name; one that is no dict is its own leaf, without a name."""
    return dict(space) if isinstance(space, Mapping) else {"": space}


def num_choices(space: Space) -> int:
    """Return how many choices an action space offers, all of its parts together; numbers are none."""
    return sum(0 if isinstance(leaf, Box) else flat_dim(leaf) for leaf in leaves_of(space).values())


ACTION_MASK = "action_mask"  # key of a dict observation: True where a choice is allowed, [N, num_choices(action)]


Flip = Sequence[tuple[int, float]]  # (source, sign) for each entry: that of the mirror image is sign * x[source]


@dataclass(frozen=True)
class Mirror:
    """How a task that is the same in a mirror looks there: flat observations by key, and flat actions."""

    observation: Mapping[str, Flip]  # the key is "" where the observation is no dict
    action: Flip


@dataclass(frozen=True)
class Measured:
    """Which entries of an observation show what came of an action: what was executed is then told from two states."""

    key: str  # part of a dict observation; "" where the observation is no dict
    entries: tuple[tuple[int, int], ...]  # (entry of the action, entry of the observation); others are not measured
    low: tuple[float, ...]  # what is measured, in the order of `entries`, where the lowest action was carried out
    high: tuple[float, ...]
    is_change: bool = False  # an action asks for a change of what is measured, not for a place


@dataclass(frozen=True)
class EnvSpec:
    """What a workflow may know of an environment."""

    id: str
    observation: Space
    action: Space  # a dict of leaves: every action is a dict of tensors
    max_episode_steps: int | None = None
    exact_resume: bool = True  # False: the state of a running episode cannot be restored
    exact_steps: bool = True  # False: the same actions in the same state may lead elsewhere in the last bits
    action_repeat: int = 1  # frames per env step
    steps_per_second: float | None = None  # env steps per second of the task's own time, as far as it tells
    mirror: Mirror | None = None  # of a task that is left-right symmetric
    no_mirror: str = ""  # why there is none, as far as the environment tells
    measured: Measured | None = None  # of a robot whose observations show what it did

    def __post_init__(self) -> None:
        parts = leaves_of(self.action)
        if not parts or ACTION_MASK in parts:
            raise ConfigError(f"environment {self.id!r}: a dict of actions needs names other than {ACTION_MASK!r}")
        for name, leaf in parts.items():
            if not isinstance(leaf, Leaf):
                kinds, found = "a Box, Discrete or MultiDiscrete, or a dict of them", type(leaf).__name__
                raise ConfigError(f"environment {self.id!r}: actions are {kinds}, but {name!r} is a {found}")
