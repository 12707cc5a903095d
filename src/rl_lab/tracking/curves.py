"""A metric of a run over env steps, frames, updates or wall time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.errors import UsageError, check_choice, unknown_name
from rl_lab.tracking.jsonl import read_rows

Array = NDArray[np.float64]
AXES = {"steps": "env steps", "frames": "frames of the simulator", "updates": "updates", "wall": "wall time in s"}
_KEYS = {"steps": "step", "frames": "frames", "updates": "updates"}


@dataclass(frozen=True)
class Curve:
    """Points with x strictly increasing."""

    x: Array
    y: Array

    def __len__(self) -> int:
        return len(self.x)

    def at(self, x: Array) -> Array:
        """Return y on a straight line between the points; beyond them the nearest one's."""
        return np.interp(x, self.x, self.y)

    def thinned(self, num_points: int) -> Curve:
        """Return at most that many points: means over neighbours, the first and last point kept."""
        if len(self) <= num_points:
            return self
        edges = np.linspace(0, len(self), num_points - 1).astype(int)  # between the two ends
        counts = np.diff(edges)
        x, y = np.add.reduceat(self.x, edges[:-1]) / counts, np.add.reduceat(self.y, edges[:-1]) / counts
        x, y = np.r_[self.x[0], x, self.x[-1]], np.r_[self.y[0], y, self.y[-1]]
        return Curve(*_increasing(x, y))


def read_curve(run: Path, metric: str, axis: str = "steps") -> Curve:
    """Return a metric's curve, without points where it is not finite; an unknown metric is an error."""
    check_choice("axis", axis, AXES)
    file = run / "metrics.jsonl"
    points = _columns(file, (metric, "step", _KEYS.get(axis, "step")))
    if not len(points):
        raise UsageError(f"{run.name}: {unknown_name('metric', metric, _metrics(run))}")
    y, step, x = points.T
    x = _wall_time(run, step) if axis == "wall" else np.where(np.isnan(x), step, x)  # no frames: one per step
    finite = np.isfinite(x) & np.isfinite(y)
    return Curve(*_increasing(x[finite], y[finite]))


def expand_metrics(names: Sequence[str], find_runs: Callable[[], Sequence[Path]]) -> list[str]:
    """Return metrics by name; a pattern such as `train/*loss` stands for all that any of the runs has."""
    runs = find_runs() if any(_is_pattern(name) for name in names) else []
    if not runs:
        return list(names)
    known = sorted(set[str]().union(*map(_metrics, runs)))
    found: dict[str, None] = {}
    for name in names:
        meant = [each for each in known if fnmatchcase(each, name)] if _is_pattern(name) else [name]
        if not meant:
            raise UsageError(unknown_name("metric", name, known))
        found |= dict.fromkeys(meant)
    return list(found)


def _is_pattern(name: str) -> bool:
    return any(letter in name for letter in "*?[")


def _metrics(run: Path) -> set[str]:
    """Return the metrics of a run's rows."""
    return {key for row in read_rows(run / "metrics.jsonl") for key in row if "/" in key}


def _columns(file: Path, keys: tuple[str, ...]) -> Array:
    """Return the numbers under these keys, row by row, of rows that have the first two; NaN where one has no other."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]  # what is behind the last line's end is half a row
    except OSError:
        return np.empty((0, len(keys)))
    needle = json.dumps(keys[0]).encode()
    lines = [line for line in lines if needle in line]
    try:
        cut = {key: _cut(lines, key) for key in {*keys}}
        columns = [cut[key] for key in keys]
    except ValueError:  # not as the lab writes it, or damaged
        columns = _parsed(lines, keys)
    rows = np.array(columns, dtype=np.float64).T.reshape(-1, len(keys))
    return rows[np.isfinite(rows[:, :2]).all(axis=1)]


def _cut(lines: list[bytes], key: str) -> list[float]:
    """Return the number behind `"key": ` of each line, without parsing the rest: a fifth of the time."""
    bare = json.dumps(key).encode()
    needle = bare + b": "
    length, found = len(needle), []
    for line in lines:
        start = line.find(needle)
        if start < 0:
            if bare in line:
                raise ValueError("another program wrote it")
            found.append(math.nan)
            continue
        end = line.find(b",", start + length)
        found.append(float(line[start + length : end] if end > 0 else line[start + length : line.index(b"}", start)]))
    return found


def _parsed(lines: list[bytes], keys: tuple[str, ...]) -> list[list[float]]:
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        values = [row.get(key) if isinstance(row, dict) else None for key in keys]
        rows.append([float(value) if isinstance(value, int | float) else math.nan for value in values])
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in keys]


def _wall_time(run: Path, steps: Array) -> Array:
    """Return when the run was at these steps, by its own clock, which stands still while the run does."""
    known = _columns(run / "perf.jsonl", ("perf/elapsed_s", "step"))
    if not len(known):
        return np.full_like(steps, np.nan)
    step, elapsed = _increasing(known[:, 1], known[:, 0])  # steps that a killed process did twice count once
    return np.interp(steps, np.r_[0.0, step], np.r_[0.0, elapsed]) if step[0] > 0 else np.interp(steps, step, elapsed)


def _increasing(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the points without those that a later one has overtaken: the last of equal x, none that goes back."""
    if not len(x):
        return x, y
    ahead = np.minimum.accumulate(x[::-1])[::-1]  # the smallest x from here on
    keep = np.r_[x[:-1] < ahead[1:], True]
    return x[keep], y[keep]
