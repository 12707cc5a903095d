"""Scores of several seeds as one number with an interval: Agarwal et al. 2021, arXiv:2108.13264.

Scores come as strata, one array per task whose first axis is the seed; the bootstrap draws seeds anew within each
stratum. NumPy alone: a comparison needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]  # over the first axis
Strata = Sequence[Array]
_CHUNK = 4_000_000  # numbers drawn at a time


def mean(scores: Array) -> Array:
    """Return the mean over seeds."""
    return np.asarray(scores.mean(axis=0))


def median(scores: Array) -> Array:
    """Return the median over seeds."""
    return np.asarray(np.median(scores, axis=0))


def iqm(scores: Array) -> Array:
    """Return the interquartile mean: the mean without the lowest and the highest quarter, each rounded down."""
    cut = len(scores) // 4
    return np.asarray(np.sort(scores, axis=0)[cut : len(scores) - cut].mean(axis=0))


STATISTICS: dict[str, Statistic] = {"mean": mean, "median": median, "iqm": iqm}


def bootstrap(strata: Strata, statistic: Statistic, *, num_draws: int = 2000, seed: int = 0) -> Array:
    """Return the statistic of `num_draws` sets of scores, each with seeds drawn anew within every stratum."""
    rng, size = np.random.default_rng(seed), sum(stratum.size for stratum in strata)
    drawn: list[Array] = []
    left = num_draws
    while left:
        count = min(left, max(1, _CHUNK // max(size, 1)))
        sets = [stratum[rng.integers(len(stratum), size=(len(stratum), count))] for stratum in strata]
        drawn.append(statistic(np.concatenate(sets)))  # [seeds, count, ...] -> [count, ...]
        left -= count
    return np.concatenate(drawn)


def interval(strata: Strata, statistic: Statistic, *, level: float = 0.95, **options: int) -> tuple[Array, Array]:
    """Return the percentile interval of a statistic."""
    low, high = np.quantile(bootstrap(strata, statistic, **options), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def performance_profile(scores: Array, thresholds: Array) -> Array:
    """Return for each threshold the share of scores above it."""
    return np.asarray((scores[None, :] > thresholds[:, None]).mean(axis=1))


def profile_interval(
    strata: Strata, thresholds: Array, *, level: float = 0.95, num_draws: int = 2000, seed: int = 0
) -> tuple[Array, Array]:
    """Return the bootstrap interval of the mean over tasks of their performance profiles, threshold by threshold."""
    drawn = np.zeros((num_draws, len(thresholds)))
    for number, stratum in enumerate(strata):
        above = (stratum[:, None] > thresholds[None, :]).astype(np.float64)  # [seeds, thresholds]
        drawn += bootstrap([above], mean, num_draws=num_draws, seed=seed + number)
    low, high = np.quantile(drawn / len(strata), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def probability_of_improvement(better: Strata, worse: Strata) -> float:
    """Return how often a score of the first beats one of the second on the same task, draws half, mean over tasks."""
    pairs = zip(better, worse, strict=True)
    return float(np.mean([_beats(first, second).mean() for first, second in pairs]))


def improvement_interval(
    better: Strata, worse: Strata, *, level: float = 0.95, num_draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the bootstrap interval of the probability of improvement."""
    rng, drawn = np.random.default_rng(seed), np.zeros(num_draws)
    for first, second in zip(better, worse, strict=True):
        rows, columns = _counts(rng, len(first), num_draws), _counts(rng, len(second), num_draws)
        drawn += ((rows @ _beats(first, second)) * columns).sum(axis=1) / (len(first) * len(second))
    low, high = np.quantile(drawn / len(better), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _counts(rng: np.random.Generator, size: int, num_draws: int) -> Array:
    """Return how often each of `size` seeds is in each draw: the draws themselves would be pairs of pairs."""
    return rng.multinomial(size, np.full(size, 1 / size), size=num_draws).astype(np.float64)  # [draws, size]


def _beats(first: Array, second: Array) -> Array:
    difference = first[:, None] - second[None, :]
    return np.asarray((difference > 0) + 0.5 * (difference == 0))
