"""From a space to the list of its trials: all points of the grid, each with its draws and its seeds."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.tuning.expressions import Expression
from rl_lab.tuning.space import Distribution, Fixed, Grid, Space

Method = Literal["grid", "random"]
SEED = "experiment.seed"
MAX_TRIALS = 10_000


def plan(
    space: Space,
    *,
    method: Method = "grid",
    num_samples: int = 1,
    seeds: Sequence[int] = (),
    seed: int = 0,
    known: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the values of every trial, by key; seeds of the same values are neighbours.

    `grid` takes all combinations of lists, `num_samples` times, each time with new draws; `random` takes
    `num_samples` combinations. `known` are the keys of the base config, which expressions may name.
    """
    grids = {key: values.values for key, values in space.items() if isinstance(values, Grid)}
    size = math.prod(len(values) for values in grids.values())
    count = (num_samples if method == "random" else num_samples * size) * max(len(seeds), 1)
    if not 1 <= count <= MAX_TRIALS:
        raise ConfigError(f"sweep: {count} trials; it must be 1 to {MAX_TRIALS}")
    points = _random_points(space, size, num_samples, seed) if method == "random" else range(size)
    trials: list[dict[str, Any]] = []
    for number in range(num_samples):
        for point in [points[number]] if method == "random" else points:
            chosen = _grid_point(grids, point) | _draws(space, len(trials), seed)
            values = _computed(space, chosen, known or {})
            trials.append({key: values[key] for key in space})  # in the order of the file
    return [values | {SEED: each} for values in trials for each in seeds] if seeds else trials


def _random_points(space: Space, size: int, num_samples: int, seed: int) -> list[int]:
    """Return points of the grid: none twice while there are others and nothing else tells trials apart."""
    rng = np.random.default_rng([seed, 0])
    if any(isinstance(values, Distribution) for values in space.values()):
        return [int(point) for point in rng.integers(size, size=num_samples)]
    if num_samples > size:
        raise ConfigError(f"num_samples: {num_samples} different trials of {size} combinations are not there")
    return [int(point) for point in rng.choice(size, num_samples, replace=False)]


def _grid_point(grids: Mapping[str, Sequence[Any]], point: int) -> dict[str, Any]:
    """Return the combination with this number; the last list turns fastest."""
    chosen: dict[str, Any] = {}
    for key, values in reversed(list(grids.items())):
        point, index = divmod(point, len(values))
        chosen[key] = values[index]
    return chosen


def _draws(space: Space, number: int, seed: int) -> dict[str, Any]:
    """Return the drawn values of one trial; each key has a stream of its own, so that others may come and go."""
    return {
        key: values.draw(np.random.default_rng([seed, 1, number, zlib.crc32(key.encode())]))
        for key, values in space.items()
        if isinstance(values, Distribution)
    }


def _computed(space: Space, chosen: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {**chosen, **derived(space, chosen, known)}


def derived(space: Space, chosen: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is fixed and what is computed from `chosen` values, from the base config or from each other."""
    values = dict(chosen) | {key: spec.value for key, spec in space.items() if isinstance(spec, Fixed)}
    waiting: list[str] = []

    def lookup(key: str) -> Any:
        spec = space.get(key)
        if key in values or not isinstance(spec, Expression):
            if key not in values and key not in known:
                raise ConfigError(f"sweep.{waiting[-1]}: " + unknown_name("key", key, {*space, *known}))
            return values[key] if key in values else known[key]
        if key in waiting:
            raise ConfigError(f"sweep.{key}: the expressions {' and '.join(waiting)} wait for each other")
        waiting.append(key)
        values[key] = spec.value(lookup)
        waiting.pop()
        return values[key]

    for key, spec in space.items():
        if isinstance(spec, Expression):
            lookup(key)
    return {key: value for key, value in values.items() if key not in chosen}


def distinct(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between trials."""
    keys = dict.fromkeys(itertools.chain.from_iterable(trials))
    return [key for key in keys if any(trial.get(key) != trials[0].get(key) for trial in trials)]
