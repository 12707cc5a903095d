"""Runs side by side: groups of seeds, their scores at the same point with intervals, and their curves with bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.core.errors import UsageError, check_choice
from rl_lab.ops import aggregates
from rl_lab.ops.aggregates import STATISTICS, Array
from rl_lab.tracking.catalogue import RunInfo, choose_runs, list_runs, lone_runs, values_of
from rl_lab.tracking.curves import AXES, Curve, read_curve
from rl_lab.tracking.sweep_plan import settings_of

_POINTS = 200  # of a band
_SHORT = 0.5  # of the longest: a run that ends before that is worth a word


@dataclass(frozen=True)
class Member:
    """One run in a comparison."""

    run: RunInfo
    group: str
    curve: Curve
    at: float = np.nan  # the point of the axis where all runs on its environment are compared
    score: float = np.nan


@dataclass(frozen=True)
class Score:
    """The seeds of a group on one environment, by statistic: value, low and high end of the 95 % interval."""

    group: str
    environment: str
    at: float
    scores: tuple[float, ...]
    summary: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True)
class Band:
    """A group's learning curve on one environment: a statistic over seeds and its interval."""

    group: str
    environment: str
    x: Array
    center: Array
    low: Array
    high: Array
    num_seeds: int


@dataclass(frozen=True)
class Profile:
    """The share of a group's runs whose score, scaled per environment, is above each threshold; mean over them."""

    group: str
    thresholds: Array
    share: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Improvement:
    """How likely a run of the first group beats one of the second."""

    better: str
    worse: str
    probability: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """All that a comparison found; `notes` is what a reader should know of it."""

    metric: str
    group_by: str
    axis: str
    statistic: str
    members: list[Member]
    scores: list[Score]
    bands: list[Band]
    profiles: list[Profile]
    improvements: list[Improvement]
    notes: list[str] = field(default_factory=list)


def compare_experiments(
    root: Path | str,
    words: Sequence[str] = (),
    *,
    metric: str = "eval/return",
    group_by: str = "name",
    axis: str = "steps",
    at: float | None = None,
    statistic: str = "iqm",
) -> Comparison:
    """Compare runs that words name or filter, grouped by a column or config key.

    Scores are read where the shortest run of an environment ends, or `at` a point of the axis.
    """
    check_choice("statistic", statistic, STATISTICS)
    check_choice("axis", axis, AXES)
    notes: list[str] = []
    members = _members(root, compared_runs(root, words, notes), metric, group_by, axis, notes)
    members = _scored(_without_repeats(members, notes), axis, at, notes)
    environments = sorted({member.run.environment for member in members})
    groups = sorted({member.group for member in members})
    cells = {
        (group, environment): [each for each in members if (each.group, each.run.environment) == (group, environment)]
        for group in groups
        for environment in environments
    }
    scores = [_score(key, cell) for key, cell in cells.items() if cell]
    bands = [_band(key, cell, statistic) for key, cell in cells.items() if cell]
    scaled = _scaled(cells)
    return Comparison(
        metric=metric,
        group_by=group_by,
        axis=axis,
        statistic=statistic,
        members=members,
        scores=scores,
        bands=bands,
        profiles=_profiles(scaled, notes),
        improvements=_improvements(scaled),
        notes=notes,
    )


def compared_runs(root: Path | str, words: Sequence[str], notes: list[str] | None = None) -> list[RunInfo]:
    """Return the runs that words choose; without any, those that belong to no sweep or launch."""
    if words:
        return choose_runs(root, words)
    runs = lone_runs(root)
    if notes is not None and (others := len(list_runs(root)) - len(runs)):
        notes.append(f"{others} runs of sweeps and launches are left out: give their names, or a filter")
    return runs


def _members(
    root: Path | str, runs: Sequence[RunInfo], metric: str, group_by: str, axis: str, notes: list[str]
) -> list[Member]:
    runs = _readable(root, runs, notes)
    members, without = [], []
    settings = settings_of([run.path for run in runs]) if group_by == "name" else {}
    for run, (group,) in zip(runs, values_of(root, runs, [group_by]), strict=True):
        try:
            curve = read_curve(run.path, metric, axis).thinned(5 * _POINTS)
        except UsageError as error:
            without.append((run, error))
            continue
        if len(curve):
            label = _label(group)
            members.append(Member(run, f"{label} {settings[run.path]}" if run.path in settings else label, curve))
    if not members:
        raise without[0][1] if without else UsageError(f"no run has a finite {metric} over {AXES[axis]}")
    if without:
        notes.append(
            f"{len(without)} of {len(runs)} runs have no {metric} and are left out, such as {without[0][0].shown}"
        )
    return members


def _readable(root: Path | str, runs: Sequence[RunInfo], notes: list[str]) -> list[RunInfo]:
    """Return the runs whose files say what they are."""
    whole = [run for run in runs if run.status != "damaged"]
    known = [run for run in whole if run.algorithm or run.environment]
    if not known:
        why = f" (of {len(whole)}, such as {whole[0].shown}, config.yaml is missing or damaged)" if whole else ""
        raise UsageError("; ".join([f"no runs to compare in {Path(root).absolute()}{why}", *notes]))
    if lost := [run.shown for run in whole if run not in known]:
        notes.append(f"config.yaml of {len(lost)} runs is missing or damaged: they are left out, such as {lost[0]}")
    return known


def _label(value: Any) -> str:
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return "none" if value is None else str(value)


def _without_repeats(members: list[Member], notes: list[str]) -> list[Member]:
    """Return one run, the longest, of those that share group, environment, seed and config: they are no two seeds."""
    kept: dict[tuple[Any, ...], Member] = {}
    for member in members:
        run = member.run
        is_known = run.seed is not None and run.config_hash
        key = (member.group, run.environment, run.seed, run.config_hash) if is_known else (run.path,)
        if key not in kept or member.curve.x[-1] > kept[key].curve.x[-1]:
            kept[key] = member
    if len(kept) < len(members):
        repeats = len(members) - len(kept)
        notes.append(f"{repeats} of {len(members)} runs repeat a seed of the same config: the longest of each counts")
    return list(kept.values())


def _scored(members: list[Member], axis: str, at: float | None, notes: list[str]) -> list[Member]:
    """Return the members with their scores; those that end before `at` are left out."""
    if at is not None:
        reached = [member for member in members if member.curve.x[-1] >= at]
        if len(reached) < len(members):
            notes.append(f"{len(members) - len(reached)} runs end before {at:g} {AXES[axis]} and are left out")
        if not reached:
            longest = max(member.curve.x[-1] for member in members)
            raise UsageError(f"--at {at:g}: the longest run ends at {longest:g} {AXES[axis]}")
        members = reached
    scored = []
    for member in members:
        same = [each.curve.x[-1] for each in members if each.run.environment == member.run.environment]
        end = min(same) if at is None else at
        scored.append(Member(member.run, member.group, member.curve, end, float(member.curve.at(np.array(end)))))
        if at is None and end < _SHORT * max(same):
            place = f"at {end:g} of {max(same):g} {AXES[axis]}, where the shortest run ends"
            if (note := f"{member.run.environment}: compared {place}") not in notes:
                notes.append(note)
    return scored


def _score(key: tuple[str, str], cell: Sequence[Member]) -> Score:
    scores = np.array([member.score for member in cell])
    summary = {}
    for name, statistic in STATISTICS.items():
        low, high = aggregates.interval([scores], statistic) if len(scores) > 1 else (np.nan, np.nan)
        summary[name] = (float(statistic(scores)), float(low), float(high))
    return Score(*key, cell[0].at, tuple(scores.tolist()), summary)


def _band(key: tuple[str, str], cell: Sequence[Member], statistic: str) -> Band:
    """Return the band over the range that all seeds of a group share."""
    low_end, high_end = max(each.curve.x[0] for each in cell), min(each.curve.x[-1] for each in cell)
    points = np.unique(np.concatenate([each.curve.x for each in cell]))
    points = points[(points >= low_end) & (points <= high_end)]
    if not 1 <= len(points) <= _POINTS:
        points = np.linspace(min(low_end, high_end), high_end, _POINTS)
    values = np.stack([each.curve.at(points) for each in cell])  # [seeds, points]
    compute = STATISTICS[statistic]
    center = compute(values)
    low, high = aggregates.interval([values], compute, num_draws=500) if len(cell) > 1 else (center, center)
    return Band(*key, points, center, low, high, len(cell))


Scaled = dict[str, dict[str, Array]]  # group -> environment -> scores


def _scaled(cells: Mapping[tuple[str, str], Sequence[Member]]) -> Scaled:
    """Return the scores from 0 (the lowest of the compared runs on the environment) to 1 (the highest)."""
    ranges: dict[str, tuple[float, float]] = {}
    for (_, environment), cell in cells.items():
        scores = [member.score for member in cell]
        low, high = ranges.get(environment, (np.inf, -np.inf))
        ranges[environment] = (min([low, *scores]), max([high, *scores]))
    scaled: Scaled = {}
    for (group, environment), cell in cells.items():
        low, high = ranges[environment]
        if cell:
            values = np.array([member.score for member in cell])
            scaled.setdefault(group, {})[environment] = (values - low) / ((high - low) or 1.0)
    return scaled


def _profiles(scaled: Scaled, notes: list[str]) -> list[Profile]:
    """Return the profiles over the environments that all groups have, each of which counts the same."""
    every = {environment for by_environment in scaled.values() for environment in by_environment}
    common = sorted(every.intersection(*scaled.values()))
    if len(common) < len(every):
        shown = (
            f"over the {len(common)} of {len(every)} environments" if common else "not drawn: there is no environment"
        )
        notes.append(f"profiles are {shown} that all groups have")
    thresholds, profiles = np.linspace(0, 1, 101), []
    for group, by_environment in scaled.items() if common else ():
        strata = [by_environment[environment] for environment in common]
        share = np.mean([aggregates.performance_profile(stratum, thresholds) for stratum in strata], axis=0)
        low, high = aggregates.profile_interval(strata, thresholds, num_draws=500)
        profiles.append(Profile(group, thresholds, share, low, high))
    return profiles


def _improvements(scaled: Scaled) -> list[Improvement]:
    """Return the probability for every ordered pair of groups, on the environments that both have."""
    found = []
    for better, worse in permutations(scaled, 2):
        common = sorted({*scaled[better]} & {*scaled[worse]})
        if common:
            first, second = ([scaled[group][each] for each in common] for group in (better, worse))
            probability = aggregates.probability_of_improvement(first, second)
            has_seeds = all(max(map(len, scores)) > 1 for scores in (first, second))  # one seed has no interval
            low, high = aggregates.improvement_interval(first, second) if has_seeds else (np.nan, np.nan)
            found.append(Improvement(better, worse, probability, float(low), float(high)))
    return found
