"""Learning curves that others published, and whether runs reproduce them: at every published step within reach."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from rl_lab.core.errors import UsageError, unknown_name
from rl_lab.tracking.comparison import Comparison, Member

_TASKS = {"ball_in_cup-catch": "cup-catch"}  # names of the file that differ from dm_control's
_BY_ALGORITHM = {"sac": "sac", "dreamer": "dreamerv3-2023", "tdmpc": "tdmpc"}
_TDMPC2 = "tdmpc2"  # the same workflow as TD-MPC: its experiments are named so
_TELLING = 0.25  # of the published mean: within a wider margin nearly everything would be reproduced
_T_975 = (  # of Student's distribution with 1, 2, ... degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Gate:
    """One published point beside the runs: `reproduced`, `below`, `above` or `cannot tell`."""

    group: str
    task: str
    source: str
    frames: int
    value: float
    num_seeds: int
    published: float
    published_std: float
    published_seeds: int
    margin: float

    @property
    def verdict(self) -> str:
        """Return how the runs stand to the point."""
        difference = self.value - self.published
        if abs(difference) > self.margin:
            return "below" if difference < 0 else "above"
        return "cannot tell" if self.margin > _TELLING * abs(self.published) else "reproduced"


@cache
def published_curves() -> Mapping[str, Mapping[str, Any]]:
    """Return task -> source -> where it is from and its curve: rows of frames, mean, standard deviation, seeds."""
    curves: dict[str, dict[str, Any]] = json.loads(
        (files("rl_lab") / "data" / "published" / "dmc_curves.json").read_text()
    )
    return curves


def gates(comparison: Comparison, against: str | None = None, tolerance: float = 0.05) -> list[Gate]:
    """Return a gate for every group, task and published step that at least one run of the group has reached.

    The curves must be over frames. The margin is that of a t-test of the two means (Welch, 95 %), or `tolerance` of
    the published value where that is larger; a single run is taken to be one more of the published ones.
    """
    assert comparison.axis == "frames"
    cells: dict[tuple[str, str, str], list[Member]] = {}
    for member in comparison.members:
        task = task_of(member.run.environment)
        if task in published_curves():
            source = _source(member, task, against)
            if source is not None:
                cells.setdefault((member.group, task, source), []).append(member)
    if not cells:
        names = ", ".join(sorted({f"{each.run.algorithm} on {each.run.environment}" for each in comparison.members}))
        known = f"tasks: {', '.join(published_curves())}; --against chooses a curve"
        raise UsageError(f"nothing is published of {names} ({known})")
    found = [gate for key, cell in cells.items() for gate in _gates(key, cell, tolerance)]
    if not found:
        raise UsageError("no run has evaluations on both sides of a published step; train longer, or evaluate earlier")
    return found


def task_of(environment: str) -> str:
    """Return what the published curves call an environment."""
    name = environment.removeprefix("dm_control/")
    return _TASKS.get(name, name)


def _source(member: Member, task: str, against: str | None) -> str | None:
    """Return which published curve a run answers to: the named one, or else its algorithm's."""
    known = published_curves()[task]
    if against is None:
        source = _BY_ALGORITHM.get(member.run.algorithm)
        against = _TDMPC2 if source == "tdmpc" and _TDMPC2 in member.run.name else source
    elif against not in (sources := {source for curves in published_curves().values() for source in curves}):
        raise UsageError(f"--against: {unknown_name('published curve', against, sources)}")
    return against if against in known else None


def _gates(key: tuple[str, str, str], cell: Sequence[Member], tolerance: float) -> list[Gate]:
    group, task, source = key
    found = []
    for frames, mean, std, seeds in published_curves()[task][source]["curve"]:
        there = [member.curve for member in cell if member.curve.x[0] <= frames <= member.curve.x[-1]]
        if there:
            values = np.array([float(curve.at(np.array(float(frames)))) for curve in there])
            margin = max(_margin(values, std, seeds), tolerance * abs(mean))
            found.append(Gate(group, task, source, frames, float(values.mean()), len(values), mean, std, seeds, margin))
    return found


def _margin(values: np.ndarray[Any, Any], std: float, seeds: int) -> float:
    """Return the difference of means that is still within 95 % of chance."""
    if len(values) == 1:  # the interval in which one more of their runs would lie
        return _quantile(seeds - 1) * std * math.sqrt(1 + 1 / seeds)
    first, second = float(values.var(ddof=1)) / len(values), std**2 / seeds
    parts = first**2 / (len(values) - 1) + second**2 / max(seeds - 1, 1)
    freedom = math.floor((first + second) ** 2 / parts) if parts > 0 else len(_T_975) + 1
    return _quantile(freedom) * math.sqrt(first + second)


def _quantile(freedom: int) -> float:
    return _T_975[max(freedom, 1) - 1] if freedom <= len(_T_975) else 1.96
