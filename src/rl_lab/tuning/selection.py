"""Who goes on, who is replaced by whom, and with which values: the decisions of a search in rounds, as functions.

Population based training: Jaderberg et al. 2017, arXiv:1711.09846. Successive halving: Jamieson and Talwalkar 2016,
arXiv:1502.07943.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_lab.tuning.space import Distribution

Scores = Sequence[float | None]  # of the members; None: one that has failed


def ranked(scores: Scores, goal: str) -> list[int]:
    """Return the members from best to worst; of equals the earlier one is better, failed ones come last."""
    sign = -1 if goal == "maximize" else 1
    return sorted(range(len(scores)), key=lambda member: (scores[member] is None, sign * (scores[member] or 0.0)))


def survivors(scores: Scores, goal: str, keep: float) -> list[int]:
    """Return the members that go on, in their order: the best `keep` of all, one at least, and none that failed."""
    count = max(1, math.ceil(len(scores) * keep - 1e-9))
    return sorted(member for member in ranked(scores, goal)[:count] if scores[member] is not None)


def replacements(scores: Scores, goal: str, share: float, rng: np.random.Generator) -> dict[int, int]:
    """Return who begins anew from whom: the worst `share` of all from one of the best, drawn evenly.

    Whoever has failed is replaced besides. Nobody is by one that is not better.
    """
    order = ranked(scores, goal)
    count = min(max(1, int(len(scores) * share + 1e-9)), len(scores) // 2)
    best = [member for member in order[:count] if scores[member] is not None]
    chosen: dict[int, int] = {}
    for member in order[count:]:
        if best and (scores[member] is None or member in order[-count:]):
            donor = best[int(rng.integers(len(best)))]
            if scores[member] != scores[donor]:
                chosen[member] = donor
    return dict(sorted(chosen.items()))


def pauses(total: int, every: int) -> list[int]:
    """Return the env steps after which a population is looked at."""
    return list(range(every, total, every))


def rungs(total: int, first: int, keep: float) -> list[int]:
    """Return the env steps after which the worst are left behind: each lasts as much longer as fewer are left."""
    steps = [first]
    while steps[-1] < total:
        steps.append(math.ceil(first / keep ** len(steps) - 1e-9))
    return [step for step in steps if step < total]


def perturbed(
    values: Mapping[str, Any],
    space: Mapping[str, Distribution],
    rng: np.random.Generator,
    *,
    factor: float,
    resample: float,
) -> dict[str, Any]:
    """Return values near those of a donor; each is drawn anew with probability `resample`."""
    return {
        key: space[key].draw(rng) if rng.random() < resample else near(value, space[key], rng, factor)
        for key, value in values.items()
    }


def near(value: Any, among: Distribution, rng: np.random.Generator, factor: float) -> Any:
    """Return a number times or by `factor`, within its range, or a neighbour in a list."""
    is_up = bool(rng.integers(2))
    if among.kind == "choice":
        place = among.choices.index(value) + (1 if is_up else -1)
        return among.choices[min(max(place, 0), len(among.choices) - 1)]
    moved = value * factor if is_up else value / factor
    if among.kind == "normal":  # it has no ends
        return float(moved)
    if among.step is not None:
        moved = among.low + round((moved - among.low) / among.step) * among.step
    if among.kind in ("int", "log_int"):
        moved = round(moved) if round(moved) != value else value + (1 if is_up else -1) * int(among.step or 1)
    highest = among.high
    if among.step is not None:  # the last step that there is
        highest = among.low + math.floor((among.high - among.low) / among.step + 1e-9) * among.step
    moved = min(max(moved, among.low), highest)
    return int(moved) if among.kind in ("int", "log_int") else float(moved)
