"""Velocity commands: ranges, shares, timers, headings and the curriculum."""

import math

import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.robots.managers.commands import CommandManager, read_gait
from rl_lab.robots.mdp.rotations import quat_of_yaw
from tests.robots.mdp.states import DT, facts, random_state

torch.set_num_threads(1)
COUNT = 4096
EVERYWHERE = torch.ones(COUNT, dtype=torch.bool)
STATE = random_state(count=COUNT)


def manager(count=COUNT, **config):
    return CommandManager(config, facts(), count, torch.Generator().manual_seed(0))


def test_commands_fill_their_ranges():
    drawn = manager(vx=[-0.5, 1.5], vy=[-0.2, 0.2], yaw=0.3).restart(STATE, EVERYWHERE)
    assert -0.5 <= float(drawn[:, 0].min()) < -0.49
    assert 1.49 < float(drawn[:, 0].max()) <= 1.5
    assert float(drawn[:, 0].mean()) == pytest.approx(0.5, abs=0.03)
    assert float(drawn[:, 1].abs().max()) <= 0.2
    torch.testing.assert_close(drawn[:, 2], torch.full((COUNT,), 0.3))


def test_shares_of_standing_and_forward_commands():
    drawn = manager(standing=0.25, forward=0.4).restart(STATE, EVERYWHERE)
    stands = (drawn == 0.0).all(-1)
    ahead = (drawn[:, 1:] == 0.0).all(-1) & ~stands
    assert float(stands.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(ahead.float().mean()) == pytest.approx(0.75 * 0.4, abs=0.02)


def test_small_commands_become_zero():
    drawn = manager(smallest=[0.3, 0.314]).restart(STATE, EVERYWHERE)
    speed, turn = drawn[:, :2].norm(dim=-1), drawn[:, 2].abs()
    assert ((speed == 0.0) | (speed >= 0.3)).all()
    assert ((turn == 0.0) | (turn >= 0.314)).all()
    assert float((speed == 0.0).float().mean()) == pytest.approx(math.pi * 0.09 / 4.0, abs=0.02)  # a disc in a square
    assert float((turn == 0.0).float().mean()) == pytest.approx(0.314, abs=0.03)


def test_small_commands_become_zero_straight_ahead_too():
    speed = manager(smallest=[0.3, 0.0], forward=1.0).restart(STATE, EVERYWHERE)[:, 0].abs()
    assert ((speed == 0.0) | (speed >= 0.3)).all()
    assert float((speed == 0.0).float().mean()) == pytest.approx(0.3, abs=0.03)


def test_a_command_holds_for_its_time_and_timers_are_per_world():
    made = manager(resample_s=[0.2, 0.4])
    last, since, holds = made.restart(STATE, EVERYWHERE).clone(), torch.zeros(COUNT), []
    for _ in range(60):
        value = made.advance(STATE)
        changed = (value != last).any(-1)
        since += 1
        holds.append(since[changed].clone())
        since[changed], last = 0.0, value.clone()
    held = torch.cat(holds) * DT
    assert 0.2 - 1e-6 <= float(held.min()) <= 0.22
    assert 0.38 <= float(held.max()) <= 0.4 + DT
    assert float(held.mean()) == pytest.approx(0.31, abs=0.02)


def test_headings_turn_the_robot_until_it_looks_there():
    made = manager(heading=1.0, vx=0.0, vy=0.0)
    yaw = torch.zeros(COUNT)
    made.restart(random_state(count=COUNT, base_quat=quat_of_yaw(yaw)), EVERYWHERE)
    target = made.get_state()["_target"]
    for _ in range(600):
        made._left += 1.0  # the same command all the time
        yaw = yaw + DT * made.advance(random_state(count=COUNT, base_quat=quat_of_yaw(yaw)))[:, 2]
    error = torch.remainder(target - yaw + math.pi, 2 * math.pi) - math.pi
    assert float(error.abs().max()) < 0.05
    first = manager(heading=1.0, yaw=[-0.3, 0.3]).restart(STATE, EVERYWHERE)
    assert float(first[:, 2].abs().max()) <= 0.3 + 1e-6
    narrow = manager(heading=1.0, yaw=[-0.3, 0.3], curriculum={"start": 0.5})  # a curriculum narrows these rates too
    assert float(narrow.restart(STATE, EVERYWHERE)[:, 2].abs().max()) == pytest.approx(0.15)


def test_a_restart_draws_only_in_its_worlds():
    made = manager()
    before = made.restart(STATE, EVERYWHERE).clone()
    mask = torch.arange(COUNT) < 10
    after = made.restart(STATE, mask)
    assert (after[:10] != before[:10]).any()
    assert torch.equal(after[10:], before[10:])


def test_the_curriculum_widens_when_enough_episodes_were_tracked_well():
    made = manager(count=10, curriculum={"start": 0.5, "widen": 0.2, "share": 0.8})
    state, everywhere = random_state(count=10), torch.ones(10, dtype=torch.bool)
    assert float(made.restart(state, everywhere).abs().max()) <= 0.5
    some = torch.arange(10) < 4
    levels = []
    for reward in (0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9):
        made.learn(torch.full((10,), reward), some)
        levels.append(round(float(made.level), 2))
    # 12 episodes are enough for a look: after three calls each, and only a good mean widens
    assert levels[2::3] == [0.7, 0.7, 0.9, 1.0, 1.0]
    made.begin()
    assert float(made.level) == 0.5


def test_a_tester_can_hold_a_command():
    made = manager(count=4, heading=1.0)
    made.fixed = torch.tensor([[1.0, 0.0, 0.0]]).repeat(4, 1)
    state = random_state(count=4)
    assert torch.equal(made.restart(state, torch.ones(4, dtype=torch.bool)), made.fixed)
    assert torch.equal(made.advance(state), made.fixed)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"offsets": [0.0]}, r"gait.offsets: has 1 numbers, but there are 2 feet: left_foot, right_foot"),
        ({"stance": 1.5}, r"gait.stance: must be between 0 and 1"),
        ({"legs": [["left_hip"]]}, r"gait.legs: names 1 legs, but there are 2 feet"),
        ({"legs": [["left_hip"], ["right_hip"]]}, r"a leg has 1 joints, but there are 3 amplitudes"),
        ({"legs": [["left_hip", "left_kne", "left_ankle"]] * 2}, r"unknown name 'left_kne'; did you mean 'left_knee'"),
    ],
)
def test_a_gait_that_does_not_fit_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        read_gait(config, facts())
