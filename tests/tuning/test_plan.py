import itertools
import math

import numpy as np
import pytest

from rl_lab.core.errors import ConfigError
from rl_lab.tuning.plan import distinct, plan
from rl_lab.tuning.space import read_space


def test_a_grid_is_the_product_of_its_lists():
    trials = plan(read_space({"a": [1, 2], "b.c": [[8], [9, 9]], "d": "same"}))
    wanted = [{"a": a, "b.c": c, "d": "same"} for a, c in itertools.product([1, 2], [[8], [9, 9]])]
    assert trials == wanted
    assert distinct(trials) == ["a", "b.c"]


def test_seeds_of_the_same_setting_are_neighbours_and_share_its_draws():
    trials = plan(read_space({"a": [1, 2], "x": {"uniform": [0, 1]}}), num_samples=3, seeds=[5, 6])
    assert [trial["experiment.seed"] for trial in trials] == [5, 6] * 6
    assert [trial["x"] for trial in trials[::2]] == [trial["x"] for trial in trials[1::2]]
    assert len({trial["x"] for trial in trials}) == 6


def test_draws_depend_on_their_seed_alone():
    space = read_space({"x": {"uniform": [0, 1]}, "y": {"normal": [0, 1]}})
    first, again = plan(space, num_samples=4), plan(read_space({"x": {"uniform": [0, 1]}}), num_samples=4)
    assert [trial["x"] for trial in first] == [trial["x"] for trial in again]  # another key changes nothing
    assert plan(space, num_samples=4, seed=1) != first


def test_random_takes_different_points_of_a_grid():
    space = read_space({"a": [1, 2, 3], "b": [1, 2, 3]})
    trials = plan(space, method="random", num_samples=9)
    assert sorted((trial["a"], trial["b"]) for trial in trials) == sorted(itertools.product([1, 2, 3], repeat=2))
    with pytest.raises(ConfigError, match="10 different trials of 9 combinations"):
        plan(space, method="random", num_samples=10)


@pytest.mark.parametrize(
    ("spec", "low", "high", "middle"),
    [
        ({"uniform": [2, 6]}, 2, 6, 4),
        ({"log_uniform": [1e-4, 1e-2]}, 1e-4, 1e-2, 1e-3),
        ({"int": [1, 9]}, 1, 9, 5),
        ({"log_int": [1, 100]}, 1, 100, math.sqrt(0.5 * 100.5)),
        ({"uniform": [0, 1], "step": 0.25}, 0, 1, 0.5),
        ({"normal": [3, 0.5]}, 0, 6, 3),
    ],
)
def test_distributions_have_their_ends_and_their_median(spec, low, high, middle):
    drawn = np.array([trial["x"] for trial in plan(read_space({"x": spec}), num_samples=2000)])
    assert low <= drawn.min() <= drawn.max() <= high
    ranks = np.searchsorted(np.sort(drawn), [middle], side="left"), np.searchsorted(np.sort(drawn), [middle], "right")
    assert ranks[0] < 1100
    assert ranks[1] > 900


def test_stepped_values_lie_on_their_steps():
    trials = plan(
        read_space({"x": {"uniform": [0, 1], "step": 0.25}, "n": {"int": [2, 9], "step": 3}}), num_samples=200
    )
    assert {trial["x"] for trial in trials} == {0, 0.25, 0.5, 0.75, 1}
    assert {trial["n"] for trial in trials} == {2, 5, 8}
    assert all(type(trial["n"]) is int for trial in trials)


def test_expressions_see_other_keys_each_other_and_the_base():
    space = read_space({"c": {"expression": "b + 1"}, "b": {"expression": "a * base.n"}, "a": [2, 3]})
    trials = plan(space, known={"base.n": 10})
    assert trials == [{"c": 21, "b": 20, "a": 2}, {"c": 31, "b": 30, "a": 3}]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": []}, "sweep.a: the list is empty, which makes zero trials"),
        ({"a": {"choice": []}}, "zero trials"),
        ({"a": {"expression": "b"}, "b": {"expression": "a"}}, "wait for each other"),
        ({"a": {"expression": "algoritm.lr"}, "algorithm.lr": [1]}, "did you mean 'algorithm.lr'?"),
        ({"a": {"b": [1]}, "a.b": [2]}, "conflicting sweep keys: it is given twice"),
        ({"a": [1], "a.b": [2]}, "conflicting sweep keys 'a' and 'a.b'"),
        ({"a": {"log_unifrm": [1, 2]}}, "did you mean 'log_uniform'?"),
        ({"a": {"log_uniform": [0, 1]}}, "begins above 0"),
        ({"a": {"uniform": [2, 1]}}, "2 is above 1"),
        ({"a": {"int": [1.5, 2]}}, "whole numbers"),
        ({"a": {"uniform": [0]}}, "takes [lowest, highest]"),
        ({"a": {"normal": [0, 0]}}, "standard deviation must be above 0"),
        ({"a": {"uniform": [0, 1], "steps": 2}}, "takes no 'steps'"),
        ({"a": {"log_uniform": [1, 2], "step": 1}}, "takes no 'step'"),
        ({"a": {"uniform": [0, 1], "step": 0}}, "must be a number above 0"),
        ({"a": {"uniform": [0, 1], "int": [0, 1]}}, "give one of"),
        ([1], "must be a block"),
    ],
)
def test_what_makes_no_sense_is_one_line(tree, message):
    with pytest.raises(ConfigError) as error:
        plan(read_space(tree))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_too_many_trials_are_refused_before_they_are_made():
    with pytest.raises(ConfigError, match="1000000 trials"):
        plan(read_space({key: list(range(10)) for key in "abcdef"}))
