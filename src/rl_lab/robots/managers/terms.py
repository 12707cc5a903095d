"""From YAML to functions: every name and number of a term is checked before the first step."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any, get_type_hints

import torch
from torch import Tensor

from rl_lab.core import ConfigError, unknown_name
from rl_lab.core.references import split_reference
from rl_lab.robots.mdp.state import RobotFacts

Function = Callable[..., Any]


@dataclass(frozen=True)
class Term:
    """A function with its parameters; `options` are the other keys of its entry."""

    name: str
    function: Function
    params: Mapping[str, Any]
    options: Mapping[str, Any]

    def __call__(self, state: Any, *others: Any) -> Any:
        """Return the term of a state."""
        return self.function(state, *others, **self.params)


def functions_of(modules: Iterable[ModuleType]) -> dict[str, Function]:
    """Return the public functions that these modules define, by name."""
    found: dict[str, Function] = {}
    for module in modules:
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                found[name] = value
    return found


def read_terms(
    path: str,
    config: Mapping[str, Any],
    known: Mapping[str, Function],
    facts: RobotFacts,
    *,
    options: Mapping[str, Any],
    leading: int = 1,
) -> list[Term]:
    """Return the terms of a dict; `options` are further keys with their defaults, `leading` arguments are not params.

    An entry that is null is left out, so that one file can take a term away from another.
    """
    terms = []
    for name, entry in config.items():
        if entry is None:
            continue
        where = f"{path}.{name}"
        check_keys(where, entry, ("function", "params", *options))
        function = find_function(where, str(entry.get("function", name)), known)
        params = _read_params(where, function, entry.get("params") or {}, facts, leading)
        given = {key: entry[key] for key in options if key in entry}
        terms.append(Term(name, function, params, {**options, **given}))
    return terms


def check_keys(path: str, entry: Any, choices: Sequence[str]) -> None:
    """Raise where a config is no dict, or has a key that is not among the choices."""
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path}: must be a dict with keys among {', '.join(choices)}, not {entry!r}")
    for key in entry:
        if key not in choices:
            raise ConfigError(f"{path}: " + unknown_name("key", key, choices))


def find_function(path: str, name: str, known: Mapping[str, Function]) -> Function:
    """Return one of the library's functions, or the user's own that `module:function` names."""
    if name in known:
        return known[name]
    reference = split_reference(name)
    if reference is None:
        raise ConfigError(f"{path}: " + unknown_name("function", name, known))
    found = vars(importlib.import_module(reference.module)).get(reference.name)  # the config's names were checked
    if not inspect.isfunction(found):
        raise ConfigError(f"{path}: {name!r} is not a function")
    return found


def _read_params(
    path: str, function: Function, given: Mapping[str, Any], facts: RobotFacts, leading: int
) -> dict[str, Any]:
    wanted = list(inspect.signature(function).parameters.values())[leading:]
    check_keys(f"{path}.params", given, [parameter.name for parameter in wanted])
    hints, params = get_type_hints(function), {}
    for parameter in wanted:
        key = f"{path}.params.{parameter.name}"
        if parameter.name in given:
            params[parameter.name] = _read_value(key, parameter.name, given[parameter.name], hints, facts)
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{key}: {function.__name__} needs it")
    return params


def _read_value(path: str, name: str, value: Any, hints: Mapping[str, Any], facts: RobotFacts) -> Any:
    sources = {"joints": facts.joints, "bodies": facts.touching, "pair": facts.bodies}
    if name in sources and hints.get(name) in (Tensor, Tensor | None):
        found = columns(path, sources[name], value, facts.default_pos.device)
        if name == "pair" and len(found) != 2:
            raise ConfigError(f"{path}: must name two bodies, not {len(found)}")
        return found
    if hints.get(name) == tuple[float, float]:
        return interval(path, value)
    if hints.get(name) == float | Tensor and isinstance(value, Sequence) and not isinstance(value, str):
        return torch.tensor(numbers(path, value), device=facts.default_pos.device)
    if hints.get(name) in (float, float | Tensor) or (hints.get(name) == float | None and value is not None):
        return number(path, value)
    return flag(path, value) if hints.get(name) is bool else value


def columns(path: str, names: Sequence[str], patterns: str | Sequence[str], device: torch.device) -> Tensor:
    """Return the indices of the names that match any of the patterns (`*` stands for anything), in their own order."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not patterns:
        raise ConfigError(f"{path}: names nothing (choices: {', '.join(names)})")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"{path}: " + unknown_name("name", pattern, names))
    chosen = [i for i, name in enumerate(names) if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return torch.tensor(chosen, device=device)


def number(path: str, value: Any) -> float:
    """Return a number of the config."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path}: must be a number, not {value!r}")
    return float(value)


def whole(path: str, value: Any, least: int = 1) -> int:
    """Return a whole number of the config that must be `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{path}: must be a whole number from {least}, got {value!r}")
    return value


def not_negative(path: str, value: Any) -> float:
    """Return a number of the config that must be 0 or above."""
    if number(path, value) < 0.0:
        raise ConfigError(f"{path}: must be 0 or above, got {value}")
    return float(value)


def numbers(path: str, value: Any) -> list[float]:
    """Return a list of numbers of the config."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"{path}: must be a list of numbers, not {value!r}")
    return [number(path, each) for each in value]


def positive(path: str, value: Any) -> float:
    """Return a number of the config that must be above 0."""
    if number(path, value) <= 0.0:
        raise ConfigError(f"{path}: must be above 0, got {value}")
    return float(value)


def flag(path: str, value: Any) -> bool:
    """Return a switch of the config."""
    if not isinstance(value, bool):
        raise ConfigError(f"{path}: must be true or false, not {value!r}")
    return value


def share(path: str, value: Any) -> float:
    """Return a number of the config that must be in [0, 1]."""
    if not 0.0 <= number(path, value) <= 1.0:
        raise ConfigError(f"{path}: is a share between 0 and 1, got {value}")
    return float(value)


def interval(path: str, value: Any) -> tuple[float, float]:
    """Return the two ends of `[low, high]`; a single number is both."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        low, high = number(path, value[0]), number(path, value[1])
    else:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{path}: must be [low, high] or one number, not {value!r}")
        low = high = float(value)
    if low > high:
        raise ConfigError(f"{path}: the lower end {low:g} is above the upper end {high:g}")
    return low, high
