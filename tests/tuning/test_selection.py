"""The decisions of a search in rounds, on numbers that can be followed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.tuning.selection import near, pauses, perturbed, ranked, replacements, rungs, survivors
from rl_lab.tuning.space import Distribution


class Coin:
    """A generator whose draws are known."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def integers(self, high):
        draw = self.draws.pop(0)
        assert draw < high
        return draw


def test_members_are_ranked_with_failed_ones_last():
    assert ranked([3.0, None, 5.0, 3.0, -1.0], "maximize") == [2, 0, 3, 4, 1]
    assert ranked([3.0, None, 5.0, 3.0, -1.0], "minimize") == [4, 0, 3, 2, 1]


@pytest.mark.parametrize(
    ("scores", "keep", "left"),
    [
        ([1.0, 4.0, 2.0, 3.0], 0.5, [1, 3]),
        ([1.0, 4.0, 2.0, 3.0, 0.0, 9.0, 8.0, 7.0, 6.0], 1 / 3, [5, 6, 7]),
        ([1.0, 4.0, 2.0], 0.1, [1]),
        ([None, 4.0, None], 0.9, [1]),
        ([1.0, 2.0, 3.0, 4.0], 0.3, [2, 3]),  # 1.2 of them: rounded up
    ],
)
def test_the_best_share_goes_on(scores, keep, left):
    assert survivors(scores, "maximize", keep) == left


def test_the_worst_are_replaced_by_one_of_the_best():
    scores = [5.0, 1.0, 9.0, 3.0, 8.0, 2.0, 7.0, 6.0]
    assert replacements(scores, "maximize", 0.25, Coin(1, 0)) == {1: 2, 5: 4}  # 2 of 8: 5 and 1 by 4 and 2
    assert replacements(scores, "minimize", 0.25, Coin(0, 0)) == {2: 1, 4: 1}
    assert replacements([2.0, None, 3.0, None, 1.0], "maximize", 0.2, Coin(0, 0, 0)) == {1: 2, 3: 2}
    assert replacements([2.0, 2.0, 2.0, 2.0], "maximize", 0.5, Coin(0, 1)) == {}  # none is better
    assert replacements([None, None], "maximize", 0.5, Coin()) == {}
    assert replacements([1.0, 2.0], "maximize", 0.25, Coin(0)) == {0: 1}


def test_comparisons_are_before_the_end():
    assert pauses(1000, 300) == [300, 600, 900]
    assert pauses(900, 300) == [300, 600]
    assert pauses(300, 300) == []
    assert rungs(27_000, 1000, 1 / 3) == [1000, 3000, 9000]
    assert rungs(27_001, 1000, 1 / 3) == [1000, 3000, 9000, 27_000]
    assert rungs(100, 10, 0.25) == [10, 40]
    assert rungs(10, 10, 0.5) == []


@pytest.mark.parametrize(
    ("value", "among", "up", "down"),
    [
        (0.01, Distribution("log_uniform", 1e-4, 0.011), 0.011, 0.01 / 1.2),
        (2.0, Distribution("uniform", 0.0, 10.0), 2.4, 2.0 / 1.2),
        (2.0, Distribution("uniform", 0.0, 10.0, step=0.5), 2.5, 1.5),  # 2.4 and 1.67 to the next half
        (100, Distribution("int", 1, 1000), 120, 83),
        (2, Distribution("int", 1, 8), 3, 1),  # 2.4 and 1.67 are 2 again: one further
        (8, Distribution("int", 1, 8), 8, 7),
        (5, Distribution("int", 1, 10, step=4), 9, 1),
        (9, Distribution("int", 1, 10, step=4), 9, 5),
        ("b", Distribution("choice", choices=("a", "b", "c")), "c", "a"),
        ([64], Distribution("choice", choices=([64], [64, 64])), [64, 64], [64]),
    ],
)
def test_a_value_moves_within_its_range(value, among, up, down):
    for bit, wanted in ((1, up), (0, down)):
        moved = near(value, among, Coin(bit), 1.2)
        assert moved == pytest.approx(wanted) if isinstance(wanted, float) else moved == wanted
        assert type(moved) is type(wanted)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["uniform", "log_uniform", "int", "log_int"]))
def test_what_is_moved_again_and_again_stays_in_its_range(seed, kind):
    rng, among = np.random.default_rng(seed), Distribution(kind, 2, 17, step=3 if kind == "int" else None)
    value = among.draw(rng)
    for _ in range(30):
        value = perturbed({"a": value}, {"a": among}, rng, factor=1.5, resample=0.2)["a"]
        assert 2 <= value <= 17
        assert kind != "int" or (value - 2) % 3 == 0
        assert isinstance(value, int) == kind.endswith("int")


def test_as_many_are_drawn_anew_as_the_probability_says():
    rng, among = np.random.default_rng(0), Distribution("uniform", 0.0, 1.0)
    moved = [perturbed({"a": 0.5}, {"a": among}, rng, factor=1.25, resample=0.3)["a"] for _ in range(4000)]
    anew = sum(not any(math.isclose(value, each) for each in (0.4, 0.625)) for value in moved)
    assert abs(anew / 4000 - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 4000)
