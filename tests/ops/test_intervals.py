"""Wilson's interval, against its definition and published numbers."""

import math

import pytest

from rl_lab.ops.intervals import Z_95, wilson_interval, with_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(successes, trials, low, high):
    assert wilson_interval(successes / trials, trials) == pytest.approx((low, high), abs=5e-5)


def test_each_end_is_a_share_under_which_the_outcome_is_just_not_surprising():
    for bound in wilson_interval(0.93, 100):
        assert abs(0.93 - bound) == pytest.approx(Z_95 * math.sqrt(bound * (1.0 - bound) / 100))


def test_a_share_gets_its_interval_where_the_trials_are_known():
    found = with_interval({"share": 0.5, "trials": 100.0}, "share", "trials")
    assert found == {"share": 0.5, "trials": 100.0, "share_low": pytest.approx(0.404, abs=1e-3),
                     "share_high": pytest.approx(0.596, abs=1e-3)}  # fmt: skip
    assert with_interval({"share": 0.5}, "share", "trials") == {"share": 0.5}
