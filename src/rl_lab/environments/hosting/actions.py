"""Actions on their way into a gymnasium environment. Knows no torch, so that worker processes start light.

An agent knows three kinds of action: one choice, a vector of choices, numbers. Choices of any shape and nesting
(MultiBinary, Tuple and Dict of Discrete) are one flat vector of choices to it, a Tuple or Dict of Boxes one flat Box;
where both are mixed, an action is a dict of the three kinds, with dotted names as observations have them.
`Packing` gives the environment back the shape it asked for. Logs hold what was sent, before it is packed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_lab.environments.hosting.codec import Array, UnsupportedSpace

Rows = list[Any]  # one action per environment, as the environment takes it
SUPPORTED = "an action is a Discrete, MultiDiscrete, MultiBinary or Box, or a Tuple or Dict of them"


@dataclass(frozen=True)
class Slot:
    """Where one part of a nested action lies in the flat row."""

    first: int
    last: int
    shape: tuple[int, ...]
    dtype: Any
    is_scalar: bool = False  # of a Discrete

    def take(self, row: Array) -> Any:
        """Return this part of a row, a NumPy scalar for a Discrete."""
        part = np.ravel(row)[self.first : self.last].reshape(self.shape).astype(self.dtype)
        return part[()] if self.is_scalar else part


Packing = Slot | tuple["Packing", ...] | Mapping[str, "Packing"]


def pack(packing: Packing, row: Array) -> Any:
    """Return a flat row as the nested action it stands for."""
    if isinstance(packing, Slot):
        return packing.take(row)
    if isinstance(packing, Mapping):
        return {key: pack(part, row) for key, part in packing.items()}
    return tuple(pack(part, row) for part in packing)


@dataclass(frozen=True)
class DiscreteAction:
    """One of `n` choices; the environment is given a NumPy int64, which it checks faster than a Python int."""

    n: int
    start: int
    shape: tuple[int, ...] = ()
    dtype: type[np.generic] = np.int64  # of what the agent gives

    def sent(self, actions: Array) -> Array:
        """Return what the environments are given."""
        return actions + self.start if self.start else actions

    def rows(self, actions: Array) -> tuple[Rows, Rows]:
        """Return what each environment is given, and the same for its log."""
        chosen = list(self.sent(actions))
        return chosen, chosen

    def replay(self, log: Array) -> Rows:
        """Return the actions of a saved log, as the environment takes them."""
        return list(log)

    def draw(self, generator: np.random.Generator) -> Array:
        """Return a random action of an agent."""
        return np.asarray(generator.integers(self.n))


@dataclass(frozen=True)
class MultiDiscreteAction:
    """Several independent choices; the environment is given an int64 vector unless it asks for another shape."""

    nvec: tuple[int, ...]
    start: Array
    packing: Packing | None = None
    dtype: type[np.generic] = np.int64

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one action."""
        return (len(self.nvec),)

    def sent(self, actions: Array) -> Array:
        """Return what the environments are given, before it is packed."""
        return actions + self.start

    def rows(self, actions: Array) -> tuple[Rows, Rows]:
        """Return what each environment is given, and a copy for its log (it may write into its action)."""
        sent = self.sent(actions)
        return _packed(self.packing, sent), list(sent.copy())

    def replay(self, log: Array) -> Rows:
        """Return the actions of a saved log, as the environment takes them."""
        return _packed(self.packing, log.copy())

    def draw(self, generator: np.random.Generator) -> Array:
        """Return a random action of an agent."""
        return generator.integers(self.nvec)


@dataclass(frozen=True)
class BoxAction:
    """Numbers, clipped to the bounds of the space; whole numbers are rounded to.

    Entries that are stretched are acted on in [-1, 1] and mapped to their own bounds.
    """

    shape: tuple[int, ...]
    low: Array
    high: Array
    stretched: Array | None = None  # bool per entry; None: no entry is
    whole: Array | None = None  # bool per entry; None: no entry is
    packing: Packing | None = None
    dtype: type[np.generic] = np.float32

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the bounds an agent acts in; infinite where any entry has none."""
        if self.stretched is None:
            return float(self.low.min()), float(self.high.max())
        return (-1.0, 1.0) if self.stretched.all() else (-math.inf, math.inf)

    @cached_property
    def _span(self) -> Array:
        with np.errstate(over="ignore"):  # of entries that are as wide as the type itself
            span = self.high - self.low
        return span if self.stretched is None else np.where(self.stretched, span, 0.0).astype(span.dtype)

    def sent(self, actions: Array) -> Array:
        """Return what the environments are given, before it is packed."""
        if self.stretched is not None:
            inner = self.low + (actions + np.float32(1.0)) * np.float32(0.5) * self._span
            actions = np.where(self.stretched, inner, actions)
        sent = np.minimum(np.maximum(actions, self.low), self.high)
        return sent if self.whole is None else np.where(self.whole, np.rint(sent), sent)

    def rows(self, actions: Array) -> tuple[Rows, Rows]:
        """Return what each environment is given, and a copy for its log (it may write into its action)."""
        sent = self.sent(actions)
        return _packed(self.packing, sent), list(sent.copy())

    def replay(self, log: Array) -> Rows:
        """Return the actions of a saved log, as the environment takes them."""
        return _packed(self.packing, log.copy())

    def draw(self, generator: np.random.Generator) -> Array:
        """Return a random action of an agent, sometimes outside its bounds."""
        return generator.standard_normal(self.shape, np.float32)


PlainAction = DiscreteAction | MultiDiscreteAction | BoxAction


@dataclass(frozen=True)
class MixedAction:
    """Choices and numbers by name. On their way they are one row of float64, which holds all of them exactly."""

    parts: Mapping[str, PlainAction]
    packing: Packing
    dtype: type[np.generic] = np.float64

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row."""
        return (sum(math.prod(part.shape) for part in self.parts.values()),)

    def join(self, actions: Mapping[str, Array]) -> Array:
        """Return the rows [N, K] of the actions of an agent."""
        return np.concatenate(
            [actions[name].reshape(len(actions[name]), -1) for name in self.parts], axis=1, dtype=np.float64
        )

    def rows(self, actions: Array) -> tuple[Rows, Rows]:
        """Return what each environment is given, and the rows for its log; packing makes copies."""
        ends = np.cumsum([math.prod(part.shape) for part in self.parts.values()])[:-1]
        columns = zip(self.parts.items(), np.split(actions, ends, axis=1), strict=True)
        sent = self.join(
            {
                name: part.sent(column.astype(part.dtype).reshape(len(column), *part.shape))
                for (name, part), column in columns
            }
        )
        return _packed(self.packing, sent), list(sent)

    def replay(self, log: Array) -> Rows:
        """Return the actions of a saved log, as the environment takes them."""
        return _packed(self.packing, log)

    def draw(self, generator: np.random.Generator) -> Array:
        """Return a random row of an agent."""
        return np.concatenate([np.ravel(part.draw(generator)) for part in self.parts.values()], dtype=np.float64)


ActionCodec = PlainAction | MixedAction


def action_codec(space: spaces.Space[Any], rescale: bool | None = None) -> ActionCodec:
    """Return the codec of an action space; raises UnsupportedSpace.

    `rescale`: whether Box entries with bounds are acted on in [-1, 1]; None: where bounds differ between entries.
    """
    named: dict[str, spaces.Space[Any]] = {}
    packing = _flatten(space, "", named)
    if not named or not all(isinstance(leaf, (spaces.Box, *CHOICES)) for leaf in named.values()):
        raise UnsupportedSpace(f"{space}; {SUPPORTED}")
    if empty := [name for name, leaf in named.items() if math.prod(leaf.shape or ()) == 0]:
        part = f"the part {empty[0]!r} of an action" if empty[0] else "an action"
        raise UnsupportedSpace(f"{space}; {part} has no dimension")
    if len({isinstance(leaf, spaces.Box) for leaf in named.values()}) == 1:
        return _plain_action(space, list(named.values()), packing, rescale)
    parts = {name: _plain_action(leaf, [leaf], _flatten(leaf, "", {}), rescale) for name, leaf in named.items()}
    return MixedAction(parts, packing)


def _plain_action(
    space: spaces.Space[Any], leaves: list[spaces.Space[Any]], packing: Packing, rescale: bool | None
) -> PlainAction:
    """Return the codec of a space whose leaves are all Boxes, or all choices."""
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(int(space.n), int(space.start))
    if isinstance(leaves[0], spaces.Box):
        return _box_action(leaves, packing, rescale)
    nvec = np.concatenate([_sizes(leaf) for leaf in leaves])
    start = np.concatenate([_starts(leaf) for leaf in leaves])
    is_flat = isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1
    return MultiDiscreteAction(tuple(int(n) for n in nvec), start, None if is_flat else packing)


CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def _flatten(space: spaces.Space[Any], name: str, leaves: dict[str, spaces.Space[Any]]) -> Packing:
    """Add the leaves of a space under their dotted names, in order, and return how a flat row of them is packed."""
    prefix = f"{name}." if name else ""
    if isinstance(space, spaces.Tuple):
        return tuple(_flatten(part, f"{prefix}{index}", leaves) for index, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: _flatten(part, f"{prefix}{key}", leaves) for key, part in space.spaces.items()}
    if name in leaves:
        raise UnsupportedSpace(f"{space} under a name that is there twice, {name!r}")
    first = sum(math.prod(leaf.shape or ()) for leaf in leaves.values())
    leaves[name] = space
    shape = space.shape or ()
    return Slot(first, first + math.prod(shape), shape, space.dtype, isinstance(space, spaces.Discrete))


def _sizes(space: Any) -> Array:
    if isinstance(space, spaces.MultiBinary):
        return np.full(math.prod(space.shape), 2)
    return np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).astype(np.int64)


def _starts(space: Any) -> Array:
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(math.prod(space.shape), np.int64)
    return np.ravel(space.start).astype(np.int64)


def _box_action(leaves: list[Any], packing: Packing, rescale: bool | None) -> BoxAction:
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    shape = leaves[0].shape if isinstance(packing, Slot) else (sum(sizes),)
    whole = np.repeat([np.issubdtype(leaf.dtype, np.integer) for leaf in leaves], sizes).reshape(shape)
    floats = [leaf.dtype for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]
    kind = np.float64 if whole.any() else np.result_type(*floats)
    low, high = (
        np.concatenate([bound.ravel() for bound in bounds]).astype(kind).reshape(shape)
        for bounds in ([leaf.low for leaf in leaves], [leaf.high for leaf in leaves])
    )
    is_plain = isinstance(packing, Slot) and not whole.any() and shape != ()  # whose rows are no arrays
    stretched = _stretched(low, high, rescale)
    return BoxAction(shape, low, high, stretched, whole if whole.any() else None, None if is_plain else packing)


def _stretched(low: Array, high: Array, rescale: bool | None) -> Array | None:
    with np.errstate(over="ignore"):
        is_bounded = np.isfinite(high - low)  # not so of bounds as wide as the type itself
    if rescale is None:
        has_own = bool((low != low.flat[0]).any() or (high != high.flat[0]).any())
        rescale = has_own and bool(is_bounded.all())
    return is_bounded if rescale and is_bounded.any() else None


def _packed(packing: Packing | None, sent: Array) -> Rows:
    return list(sent) if packing is None else [pack(packing, row) for row in sent]
