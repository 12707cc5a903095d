"""A simulated human takes over after patience and delay, corrects, hands back, tires, and judges."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.core.operator import FAILURE, SUCCESS, Station
from rl_lab.human.cell.insertion import NAME, make_env
from rl_lab.human.experts import InsertionExpert, ScriptedExpert
from rl_lab.human.simulated import SimulatedHuman


class Line(ScriptedExpert):
    """One number, which is how far there is to go; it always steps by 1."""

    num_actions, num_observations, done_at = 1, 1, 0.0

    def plan(self, obs):
        return torch.ones_like(obs)

    def remaining(self, obs):
        return obs[:, 0]


def human(**options):
    defaults = {"patience_steps": 4, "min_progress": 0.1, "reaction_steps": 2, "recovery": 1.0, "noise": 0.0}
    return SimulatedHuman(Line(), **{**defaults, **options})


def watched(operator, ways, firsts=None):
    """Return at which steps of one episode the human acts, given what is left to do at each."""
    carry, acts = operator.initial_carry(1), []
    for index, left in enumerate(ways):
        is_first = torch.tensor([index == 0 if firsts is None else index in firsts])
        obs = torch.tensor([[float(left)]])
        orders, carry = operator.watch(obs, torch.zeros(1, 1), carry, is_first=is_first)
        acts.append(bool(orders.is_acting))
    return [index for index, is_acting in enumerate(acts) if is_acting]


def test_it_lets_a_policy_be_that_moves_on():
    assert watched(human(), [10 - 0.2 * t for t in range(30)]) == []


def test_it_takes_over_after_patience_and_delay_and_hands_back():
    # progress at step 0; four steps without any (1 to 4), decided at 4, two more steps of delay: acts from 6 on
    ways = [5.0] * 7 + [4.5, 4.0, 4.0, 3.9]  # 1.0 has been done at step 8
    assert watched(human(), ways) == [6, 7]
    assert watched(human(reaction_steps=0), ways)[0] == 4


def test_progress_calls_a_reaction_off():
    assert watched(human(), [5.0] * 5 + [4.5] + [4.5] * 3) == []  # decided at 4, off at 5
    assert watched(human(), [5.0] * 5 + [4.5] + [4.5] * 6) == [11]  # again: 9 decided, 11


def test_its_patience_is_limited():
    stuck = [5.0] * 60
    acts = watched(human(max_correction_steps=3, max_takeovers=2), stuck)
    assert acts == [6, 7, 8, 15, 16, 17]  # three steps, then four of patience and two of delay
    assert watched(human(max_takeovers=0), stuck) == []
    assert watched(human(recovery=None, max_correction_steps=100), stuck) == list(range(6, 60))


def test_a_new_episode_begins_with_a_new_mind():
    assert watched(human(), [5.0] * 5 + [5.0] * 6, firsts={0, 5}) == []
    assert watched(human(), [5.0] * 5 + [5.0] * 7, firsts={0, 5}) == [11]


def test_copies_are_watched_apart_and_hands_are_unsteady():
    torch.manual_seed(0)
    operator = human(noise=0.2)
    carry = operator.initial_carry(2)
    for step in range(9):
        obs = torch.tensor([[5.0], [5.0 - step]])
        orders, carry = operator.watch(obs, torch.zeros(2, 1), carry, is_first=torch.full((2,), step == 0))
    assert orders.is_acting.tolist() == [True, False]
    draws = torch.stack(
        [operator.watch(obs, torch.zeros(2, 1), carry, is_first=torch.zeros(2).bool())[0].actions for _ in range(300)]
    )
    assert draws.max() == 1.0  # clipped
    assert draws.min() < 0.6
    assert (1.0 - draws).mean() == pytest.approx(0.2 * 0.3989, abs=0.02)  # of a normal cut at its mean


def test_what_it_remembers_is_all_of_it():
    ways = [5.0] * 9 + [4.0] + [4.0] * 20
    operator = human(noise=0.3)
    carry = operator.initial_carry(1)
    for index, left in enumerate(ways):
        if index == 7:  # in the middle of a correction
            saved, stream = {key: value.clone() for key, value in carry.items()}, torch.get_rng_state()
            first = []
        orders, carry = operator.watch(
            torch.tensor([[left]]), torch.zeros(1, 1), carry, is_first=torch.tensor([index == 0])
        )
        if index >= 7:
            first.append((bool(orders.is_acting), orders.actions.item()))
    torch.set_rng_state(stream)
    other, again = human(noise=0.3), []
    for left in ways[7:]:
        orders, saved = other.watch(torch.tensor([[left]]), torch.zeros(1, 1), saved, is_first=torch.tensor([False]))
        again.append((bool(orders.is_acting), orders.actions.item()))
    assert again == first
    assert {is_acting for is_acting, _ in first} == {True, False}


def test_it_judges_by_what_is_left():
    assert human().judge(torch.tensor([[0.5], [0.0], [-0.1]]), torch.zeros(3)).tolist() == [FAILURE, SUCCESS, SUCCESS]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"patience_steps": 0}, "patience_steps of a simulated human must be 1 or more, got 0"),
        ({"noise": -0.1}, "noise of a simulated human must be 0 or more, got -0.1"),
    ],
)
def test_bad_options_are_one_line(options, line):
    with pytest.raises(ConfigError, match=line):
        human(**options)


def test_a_hasty_call_ends_an_episode_early_as_a_success():
    env = make_env(NAME)
    env.reset(seed=1)
    operator = SimulatedHuman(InsertionExpert(), hasty=1.0)
    told = []
    seat = SimpleNamespace(num_envs=1, instruct=lambda word: (told.append(word), env.instruct(word)))
    operator.bind(Station(seat, None, 0))
    lengths = []
    for _ in range(40):
        carry, is_first, length = operator.initial_carry(1), torch.tensor([True]), 0
        obs, terminated = torch.from_numpy(env.reset()[0])[None], False
        while not terminated:
            _, carry = operator.watch(obs, torch.zeros(1, 3), carry, is_first=is_first)
            seen, reward, terminated, truncated, _ = env.step(np.zeros(3, np.float32))
            obs, is_first, length = torch.from_numpy(seen)[None], torch.tensor([False]), length + 1
            assert not truncated
        assert operator.judge(obs, torch.tensor([reward])).item() == SUCCESS
        assert SimulatedHuman(InsertionExpert()).judge(obs, torch.tensor([reward])).item() == FAILURE
        lengths.append(length)
    assert set(lengths) == {1, 2, 3, 4}
    assert told == ["success"] * 40


def test_mistakes_of_the_human_are_as_frequent_as_is_said():
    torch.manual_seed(1)
    failed = torch.full((4000, 1), 3.0)
    assert human(false_success=0.25).judge(failed, torch.zeros(4000)).eq(SUCCESS).float().mean() == pytest.approx(
        0.25, abs=0.03
    )
    before = torch.get_rng_state()
    assert human().judge(failed, torch.ones(4000)).eq(FAILURE).all()
    assert torch.equal(torch.get_rng_state(), before)  # who makes no mistakes draws nothing
    assert "calls_in" not in human().initial_carry(1)


def test_hasty_calls_are_for_one_robot():
    with pytest.raises(ConfigError, match="hasty of a simulated human needs environment.num_envs=1, not 8"):
        human(hasty=0.1).bind(Station(SimpleNamespace(num_envs=8), None, 0))
    with pytest.raises(ConfigError, match="false_success of a simulated human must be from 0 to 1, got 2"):
        human(false_success=2)
