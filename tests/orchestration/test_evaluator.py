import random

import pytest
import torch

from rl_lab.core import RngStreams
from rl_lab.environments.counting import Counting
from rl_lab.orchestration.evaluator import Evaluator
from tests.orchestration.parts import Counter, Reporting


def evaluator(num_envs, num_episodes, **options):
    return Evaluator(Counting(num_envs, min_length=2, max_length=9), num_episodes, RngStreams(3), **options)


def expected(num_envs, num_episodes):
    """The counting environment's episodes in the shares fixed beforehand: return of length L is 1 + ... + L."""
    env = Counting(num_envs, min_length=2, max_length=9)
    lengths = [
        env.episode_length(copy, episode)
        for copy in range(num_envs)
        for episode in range(num_episodes // num_envs + (copy < num_episodes % num_envs))
    ]
    return lengths, [length * (length + 1) / 2 for length in lengths]


@pytest.mark.parametrize(("num_envs", "num_episodes"), [(1, 3), (4, 4), (4, 10), (7, 3), (3, 20)])
def test_every_copy_plays_its_share_whole_so_that_short_episodes_do_not_crowd_in(num_envs, num_episodes):
    lengths, returns = expected(num_envs, num_episodes)
    metrics = evaluator(num_envs, num_episodes).evaluate(Counter(), step=0)
    assert metrics["episodes"] == num_episodes == len(returns)
    assert metrics["return"] == pytest.approx(sum(returns) / len(returns))
    assert metrics["length"] == pytest.approx(sum(lengths) / len(lengths))
    assert (metrics["return_min"], metrics["return_max"]) == (min(returns), max(returns))
    mean = sum(returns) / len(returns)
    assert metrics["return_std"] == pytest.approx((sum((r - mean) ** 2 for r in returns) / len(returns)) ** 0.5)


def test_the_last_infos_of_the_counted_episodes_are_averaged():
    lengths, _ = expected(4, 10)
    judge = Evaluator(Reporting(4, min_length=2, max_length=9), 10, RngStreams(3))
    metrics = judge.evaluate(Counter(), step=0)
    assert metrics["info/steps"] == pytest.approx(sum(lengths) / 10)
    assert metrics["info/copy"] == pytest.approx((3 * 0.0 + 3 * 0.5 + 2 * 1.0 + 2 * 1.5) / 10)  # 3, 3, 2, 2 episodes
    assert not any(name.startswith("info/") for name in evaluator(4, 10).evaluate(Counter(), step=0))


def test_training_does_not_notice_an_evaluation():
    torch.manual_seed(0)
    random.seed(0)
    before = torch.rand(1), random.random()
    torch.manual_seed(0)
    random.seed(0)
    workflow = Counter().train()
    evaluator(2, 4, explore=True).evaluate(workflow, step=0)
    assert (torch.rand(1), random.random()) == before
    assert workflow.training


def test_evaluations_differ_from_each_other_and_go_on_after_a_restore():
    class Recording(Counter):
        def act(self, *args, **kwargs):
            actions, extras, carry = super().act(*args, **kwargs)
            self.calls.append(actions.tolist())
            return actions, extras, carry

    def actions_of(judge):
        workflow = Recording()
        judge.evaluate(workflow, step=0)
        return workflow.calls

    first = evaluator(2, 6, explore=True)
    runs = [actions_of(first) for _ in range(3)]
    assert runs[0] != runs[1]
    second = evaluator(2, 6, explore=True)
    assert actions_of(second) == runs[0]
    third = evaluator(2, 6, explore=True)
    third.set_state(second.get_state())
    assert actions_of(third) == runs[1]
    assert third.best == first.best


def test_a_stopped_evaluation_is_the_same_one_again():
    judge, asked = evaluator(2, 6), iter([False] * 5 + [True])
    assert judge.evaluate(Counter(), step=0, should_stop=lambda: next(asked)) is None
    assert judge.best is None
    assert judge.evaluate(Counter(), step=0) == evaluator(2, 6).evaluate(Counter(), step=0)


class Rewarded(Counting):
    """Rewards the action itself."""

    def step(self, actions):
        return super().step(actions)._replace(rewards=actions.float())


class Constant(Counter):
    def __init__(self, action):
        super().__init__()
        self.action, self.played = action, 0

    def act(self, obs, carry, *, is_first, explore, step):
        self.played += 1
        actions, extras, carry = super().act(obs, carry, is_first=is_first, explore=explore, step=step)
        return torch.full_like(actions, self.action), extras, carry


def test_the_gain_over_a_rival_who_plays_once():
    rival = Constant(1)
    judge = Evaluator(Rewarded(2, min_length=4, max_length=4), 6, RngStreams(3), rival=rival)
    for action, gain in ((3, 8.0), (0, -4.0)):  # episodes of four steps
        metrics = judge.evaluate(Constant(action), step=0)
        assert (metrics["return"], metrics["return_gain"]) == (4.0 * action, gain)
        assert rival.played == 12
    later = Evaluator(Rewarded(2, min_length=4, max_length=4), 6, RngStreams(3), rival=rival)
    later.set_state(judge.get_state())
    assert later.evaluate(Constant(2), step=0)["return_gain"] == 4.0
    assert (later.best, rival.played) == (12.0, 12)
    later.set_state({"evaluations": 2, "best": 1.0})  # of a run that did not ask for it before
    assert later.evaluate(Constant(2), step=0)["return_gain"] == 4.0
    assert rival.played == 24
    assert "return_gain" not in evaluator(2, 6).evaluate(Counter(), step=0)


def test_what_is_judged_plays_as_without_a_rival():
    alone, beside = Counter(), Counter()
    without = Evaluator(Counting(2), 6, RngStreams(3), explore=True).evaluate(alone, step=0)
    found = Evaluator(Counting(2), 6, RngStreams(3), explore=True, rival=Counter()).evaluate(beside, step=0)
    assert {name: value for name, value in found.items() if name != "return_gain"} == without
