"""Which trajectories are accepted and which of their steps, with the arithmetic written out."""

import math

import pytest
import torch

from rl_lab.buffers.storage.acceptance import Acceptance, Judge, discounted_sum, moving_steps
from rl_lab.core import Box, ConfigError, EnvSpec, LabError


def episode(verdicts, rewards=None, states=None):
    """An episode that ends where these end; its states are the numbers from 0 on."""
    count = len(verdicts)
    states = torch.arange(count + 1.0)[:, None] if states is None else torch.tensor(states)
    return {
        "observations": states[:-1],
        "final_observations": states[-1:],
        "actions": torch.arange(count),
        "rewards": torch.zeros(count) if rewards is None else torch.tensor(rewards),
        "infos": {"verdict": torch.tensor(verdicts)},
    }


def test_a_score_is_the_discounted_sum_of_its_label():
    assert discounted_sum(torch.tensor([1.0, 2.0, 4.0]), 0.5) == 1.0 + 1.0 + 1.0
    success, failure = episode([0.0, 0.0, 1.0], [0.0, 3.0, 8.0]), episode([0.0, -1.0], [1.0, 1.0])
    assert Acceptance().score(success) == 1.0
    assert Acceptance().score(failure) == 0.0
    assert Acceptance(discount=0.9).score(success) == pytest.approx(0.81)
    assert Acceptance(label="reward", discount=0.5).score(success) == 1.5 + 2.0
    assert Acceptance(label="reward").score(failure) == 2.0


@pytest.mark.parametrize(
    ("episodes", "threshold"), [(0, 0.2), (9, 0.2), (10, 0.5), (19, 0.5), (20, 0.5), (30, 0.9), (1000, 0.9)]
)
def test_thresholds_rise_from_round_to_round(episodes, threshold):
    rule = Acceptance((0.2, 0.5, 0.5, 0.9), episodes_per_round=10)
    assert rule.threshold(episodes) == threshold


def test_the_rule_is_at_least_the_threshold_of_the_round():
    judge = Judge(Acceptance((0.5, 0.81), 3, discount=0.9, min_steps=2))
    success = lambda steps: episode([0.0] * (steps - 1) + [1.0])  # noqa: E731
    lengths = [7, 8, 1, 3, 4]  # 0.9^6 = 0.53, 0.9^7 = 0.48, too short; in the next round 0.81 is enough, 0.73 is not
    assert [judge.accepts(success(steps)) for steps in lengths] == [True, False, False, True, False]
    found = judge.statistics()
    assert (found["accepted"], found["refused"], found["short"], found["threshold"]) == (2.0, 3.0, 1.0, 0.81)
    assert found["mean_score"] == pytest.approx((0.9**6 + 0.9**7 + 1 + 0.9**2 + 0.9**3) / 5)
    other = Judge(judge.rule)
    other.set_state(judge.get_state())
    assert other.statistics() == found


def test_steps_that_lead_nowhere_are_found():
    states = torch.tensor([[0.0, 5.0], [0.0, 5.0], [0.0, 5.0], [2.0, 5.0], [2.0, 5.0], [2.0, 5.0]])
    # pairs of states: 0-0, 0-0, 0-2 (deviation 1), 2-2, 2-2; the last step stays
    assert moving_steps(states, 1, 0.5).tolist() == [False, False, True, False, True]
    assert moving_steps(states, 1, 1.0).tolist() == [False, False, False, False, True]  # more than it, not as much
    assert moving_steps(states, 2, 0.5).tolist() == [False, True, True, False, True]


def test_steps_that_lead_nowhere_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(40, 3, generator=generator) * (torch.rand(40, 1, generator=generator) < 0.2)
    for window in (1, 3, 7):
        wanted = []
        for t in range(39):
            rows = [states[min(t + k, 39)] for k in range(window + 1)]
            means = [sum(float(row[d]) for row in rows) / len(rows) for d in range(3)]
            spreads = [math.sqrt(sum((float(r[d]) - means[d]) ** 2 for r in rows) / len(rows)) for d in range(3)]
            wanted.append(max(spreads) > 0.4 or t == 38)
        assert moving_steps(states, window, 0.4).tolist() == wanted


def test_a_condensed_episode_has_lost_its_no_ops_and_nothing_else():
    states = [[0.0, 9.0], [1.0, 8.0], [1.0, 7.0], [1.0, 6.0], [3.0, 6.0]]
    given = episode([0.0, 0.0, 0.0, 1.0], states=states)
    rule = Acceptance(no_op_std=0.1, no_op_steps=1, no_op_numbers=1)
    found = rule.condensed(given)
    assert found["actions"].tolist() == [0, 3]
    assert found["observations"].tolist() == [[0.0, 9.0], [1.0, 6.0]]
    assert found["final_observations"].tolist() == [[3.0, 6.0]]
    assert found["infos"]["verdict"].tolist() == [0.0, 1.0]
    assert Acceptance(no_op_std=0.1, no_op_steps=1).condensed(given)["actions"].tolist() == [0, 1, 2, 3]
    assert Acceptance().condensed(given) is given
    named = {**given, "observations": {"state": given["observations"], "camera": torch.zeros(4, 3, 2, 2)}}
    named["final_observations"] = {"state": given["final_observations"], "camera": torch.zeros(1, 3, 2, 2)}
    assert rule.condensed(named)["observations"]["camera"].shape == (2, 3, 2, 2)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"thresholds": [0.5, 0.4]}, r"^acceptance.thresholds: must not fall, but 0.4 comes after 0.5$"),
        ({"thresholds": []}, r"^acceptance.thresholds: needs one number or more, not \[\]$"),
        ({"thresholds": [0.1, math.nan]}, r"^acceptance.thresholds: needs one number or more, not \[0.1, nan\]$"),
        ({"thresholds": [0.5, 1.5]}, r"^acceptance.thresholds: a verdict is worth at most 1, 1.5 is never reached$"),
        ({"label": "verdicts"}, r"^unknown acceptance.label 'verdicts'"),
    ],
)
def test_wrong_rules_are_one_line(options, line):
    with pytest.raises(ConfigError, match=line):
        Acceptance(**options)


def test_rules_that_do_not_fit_are_one_line():
    spec = EnvSpec("short", Box((1,)), Box((1,)), max_episode_steps=9)
    Acceptance(min_steps=9).reject_misfit(spec)
    with pytest.raises(
        ConfigError, match=r"^acceptance.min_steps: 10 steps are longer than any episode of 'short' \(9 s"
    ):
        Acceptance(min_steps=10).reject_misfit(spec)
    unjudged = {**episode([1.0]), "infos": {}}
    with pytest.raises(LabError, match=r"^acceptance.label: nobody gives a verdict: name an operator"):
        Acceptance().score(unjudged)
    nameless = {**episode([1.0]), "observations": {"arm": torch.zeros(1, 1)}}
    with pytest.raises(
        ConfigError, match=r"^acceptance.no_op_std: the robot's numbers must be called state, not \['arm'"
    ):
        Acceptance(no_op_std=0.1).condensed(nameless)
