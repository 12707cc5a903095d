"""What a key of a sweep may be: a list, a distribution, an expression over other keys, or one value for all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.tuning.expressions import Expression

RANGES = ("uniform", "log_uniform", "int", "log_int")  # [lowest, highest], both may come up
KINDS = (*RANGES, "normal", "choice", "grid", "expression")


@dataclass(frozen=True)
class Distribution:
    """Where a value is drawn from."""

    kind: str
    low: float = 0.0  # of normal: the mean
    high: float = 0.0  # of normal: the standard deviation
    step: float | None = None
    choices: tuple[Any, ...] = ()

    def draw(self, rng: np.random.Generator) -> Any:
        """Return one value."""
        if self.kind == "choice":
            return self.choices[int(rng.integers(len(self.choices)))]
        if self.kind == "normal":
            return float(rng.normal(self.low, self.high))
        if self.kind == "int":
            return int(self.low) + int(rng.integers(self._num_steps())) * int(self.step or 1)
        if self.kind == "uniform" and self.step is not None:
            return float(self.low + int(rng.integers(self._num_steps())) * self.step)
        if self.kind == "uniform":
            return float(rng.uniform(self.low, self.high))
        if self.kind == "log_int":  # every whole number has the share of the logarithm that rounds to it
            drawn = math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
            return int(min(max(round(drawn), self.low), self.high))
        return float(min(max(math.exp(rng.uniform(math.log(self.low), math.log(self.high))), self.low), self.high))

    def _num_steps(self) -> int:
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1


@dataclass(frozen=True)
class Grid:
    """Each of these values in turn."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Fixed:
    """The same in every trial."""

    value: Any


Values = Grid | Distribution | Expression | Fixed
Space = Mapping[str, Values]


def read_space(tree: object, path: str = "sweep") -> dict[str, Values]:
    """Return what each dotted key may be; nested blocks and dotted keys mean the same."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path}: must be a block of key: values, not {tree!r}")
    space: dict[str, Values] = {}
    for key, spec in _leaves(tree, ""):
        if key in space:
            raise ConfigError(f"{path}.{key}: conflicting sweep keys: it is given twice")
        space[key] = _read_values(f"{path}.{key}", spec)
    reject_nested(space, path)
    return space


def reject_nested(keys: Mapping[str, Any], path: str = "sweep") -> None:
    """Refuse a key and another one within it: which of them counts would depend on their order."""
    for key in keys:
        if outer := next((other for other in keys if key.startswith(f"{other}.")), None):
            raise ConfigError(f"{path}: conflicting sweep keys {outer!r} and {key!r}: one lies within the other")


def _leaves(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and not _is_spec(value, name):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _is_spec(value: Mapping[Any, Any], name: str) -> bool:
    if any(key in KINDS for key in value):
        return True
    first = str(next(iter(value)))
    if get_close_matches(first, KINDS, n=1, cutoff=0.8):
        raise ConfigError(f"sweep.{name}: " + unknown_name("kind of values", first, KINDS))
    return False


def _read_values(path: str, spec: Any) -> Values:
    if isinstance(spec, list):
        return Grid(_distinct(path, spec))
    if not isinstance(spec, Mapping):
        return Fixed(spec)
    kinds = [key for key in spec if key in KINDS]
    if len(kinds) != 1:
        raise ConfigError(f"{path}: give one of {', '.join(KINDS)}")
    kind, options = str(kinds[0]), {str(key): value for key, value in spec.items() if key != kinds[0]}
    if unknown := [key for key in options if key != "step" or kind not in ("uniform", "int")]:
        raise ConfigError(f"{path}: {kind} takes no {unknown[0]!r} (step goes with uniform and int)")
    if kind == "expression":
        return Expression(path, spec[kind])
    if kind in ("choice", "grid"):
        if kind == "grid":
            return Grid(_distinct(path, spec[kind]))
        return Distribution("choice", choices=_not_empty(path, spec[kind]))
    return _read_range(path, kind, spec[kind], options.get("step"))


def _not_empty(path: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list):
        raise ConfigError(f"{path}: must be a list, not {values!r}")
    if not values:
        raise ConfigError(f"{path}: the list is empty, which makes zero trials")
    return tuple(values)


def _distinct(path: str, values: object) -> tuple[Any, ...]:
    seen: list[str] = []  # as they are written: a list has no hash, and 1 is not true
    for value in _not_empty(path, values):
        if repr(value) in seen:
            raise ConfigError(f"{path}: {value!r} is given twice, which makes equal trials")
        seen.append(repr(value))
    return _not_empty(path, values)


def _read_range(path: str, kind: str, bounds: Any, step: Any) -> Distribution:
    named = "[mean, standard deviation]" if kind == "normal" else "[lowest, highest]"
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(_is_number(bound) for bound in bounds):
        raise ConfigError(f"{path}: {kind} takes {named}, not {bounds!r}")
    low, high = bounds
    if kind.endswith("int") and not all(isinstance(bound, int) for bound in bounds):
        raise ConfigError(f"{path}: {kind} takes whole numbers, not {bounds!r}")
    if kind == "normal" and high <= 0:
        raise ConfigError(f"{path}: the standard deviation must be above 0, not {high!r}")
    if kind != "normal" and low > high:
        raise ConfigError(f"{path}: {kind} takes {named}; {low!r} is above {high!r}")
    if kind.startswith("log_") and low <= 0:
        raise ConfigError(f"{path}: {kind} begins above 0, not at {low!r}")
    if step is not None and (not _is_number(step) or step <= 0 or (kind == "int" and not isinstance(step, int))):
        raise ConfigError(f"{path}.step: must be a number above 0{' and whole' * (kind == 'int')}, not {step!r}")
    return Distribution(kind, low, high, step)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
