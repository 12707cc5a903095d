"""Every number beside one from plain loops over sorted lists."""

import itertools
import random
from statistics import mean, median

import numpy as np
import pytest

from rl_lab.ops import aggregates


def naive_iqm(values):
    ordered = sorted(values)
    cut = int(0.25 * len(ordered))
    return mean(ordered[cut : len(ordered) - cut])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 13, 40])
def test_statistics_are_those_of_plain_loops(count):
    values = [random.Random(count).gauss(0, 1) for _ in range(count)]
    scores = np.array(values)
    assert float(aggregates.mean(scores)) == pytest.approx(mean(values))
    assert float(aggregates.median(scores)) == pytest.approx(median(values))
    assert float(aggregates.iqm(scores)) == pytest.approx(naive_iqm(values))


def test_iqm_leaves_out_a_quarter_on_each_side():
    assert float(aggregates.iqm(np.array([-1000.0, 1.0, 3.0, 9.0]))) == 2.0
    curves = np.array([[1.0, 5.0], [9.0, 6.0], [3.0, -100.0], [2.0, 7.0]])
    assert aggregates.iqm(curves).tolist() == [2.5, 5.5]  # column by column


def all_draws(strata):
    """Every way to draw as many seeds again within each stratum, equally likely."""
    per_stratum = [list(itertools.product(stratum, repeat=len(stratum))) for stratum in strata]
    for choice in itertools.product(*per_stratum):
        yield [value for drawn in choice for value in drawn]


@pytest.mark.parametrize("name", ["mean", "median", "iqm"])
def test_the_bootstrap_has_the_distribution_of_all_draws(name):
    strata = [[1.0, 5.0, 6.0], [10.0, 30.0, 70.0]]
    statistic = {"mean": mean, "median": median, "iqm": naive_iqm}[name]
    exact = sorted(statistic(values) for values in all_draws(strata))  # 27 x 27 of them
    drawn = aggregates.bootstrap([np.array(s) for s in strata], aggregates.STATISTICS[name], num_draws=40_000, seed=3)
    assert drawn.shape == (40_000,)
    assert drawn.mean() == pytest.approx(mean(exact), rel=0.01)
    for place in (0.1, 0.5, 0.9):
        share = np.mean([value <= exact[int(place * len(exact))] for value in drawn])
        expected = mean(value <= exact[int(place * len(exact))] for value in exact)
        assert share == pytest.approx(expected, abs=0.015)


def test_strata_are_not_mixed():
    """Each stratum keeps its size: with constant strata nothing is random."""
    strata = [np.zeros(3), np.full(1, 8.0)]
    assert set(aggregates.bootstrap(strata, aggregates.mean, num_draws=50).tolist()) == {2.0}


def test_intervals_repeat_and_hold_the_value():
    scores = np.random.default_rng(0).normal(5, 2, size=20)
    first = aggregates.interval([scores], aggregates.iqm)
    assert first == aggregates.interval([scores], aggregates.iqm)
    assert first[0] < naive_iqm(scores.tolist()) < first[1]
    wide, narrow = (aggregates.interval([scores], aggregates.mean, level=level) for level in (0.95, 0.5))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_large_sets_are_drawn_in_pieces(monkeypatch):
    scores = np.random.default_rng(0).normal(size=(6, 50))
    monkeypatch.setattr(aggregates, "_CHUNK", 6 * 50 * 7)
    drawn = aggregates.bootstrap([scores], aggregates.mean, num_draws=100)
    assert drawn.shape == (100, 50)
    assert np.allclose(drawn.mean(axis=0), scores.mean(axis=0), atol=0.3)


def test_a_performance_profile_counts():
    scores, thresholds = np.array([0.1, 0.5, 0.5, 0.9]), np.array([0.0, 0.1, 0.5, 0.9])
    naive = [sum(score > t for score in scores) / 4 for t in thresholds]
    assert aggregates.performance_profile(scores, thresholds).tolist() == naive
    low, high = aggregates.profile_interval([scores], thresholds)
    assert (low <= naive).all()
    assert (high >= naive).all()


def test_the_probability_of_improvement_counts_pairs():
    first, second = [[3.0, 1.0, 2.0], [5.0, 5.0]], [[2.0, 0.0], [5.0, 7.0, 9.0]]
    per_task = []
    for xs, ys in zip(first, second, strict=True):
        wins = [1.0 if x > y else 0.5 if x == y else 0.0 for x in xs for y in ys]
        per_task.append(mean(wins))
    arrays = [[np.array(x) for x in side] for side in (first, second)]
    assert aggregates.probability_of_improvement(*arrays) == pytest.approx(mean(per_task))
    low, high = aggregates.improvement_interval(*arrays)
    assert low <= mean(per_task) <= high
    other = aggregates.probability_of_improvement(arrays[1], arrays[0])
    assert other == pytest.approx(1 - mean(per_task))


def test_the_interval_of_improvement_takes_memory_for_the_draws_not_for_their_pairs():
    import tracemalloc

    rng = np.random.default_rng(0)
    first, second = rng.normal(size=200), rng.normal(size=200)
    tracemalloc.start()
    low, high = aggregates.improvement_interval([first], [second])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6  # pairs: 2,000 draws x 200 x 200 x 8 bytes = 640 MB
    assert low < aggregates.probability_of_improvement([first], [second]) < high
