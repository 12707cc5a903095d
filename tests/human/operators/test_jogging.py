from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.cell import arm
from rl_lab.human.cell.env import CellEnv
from rl_lab.human.operators.desk import Wishes
from rl_lab.human.operators.jogging import Jogger, Jogging
from tests.human.bench import ARM
from tests.human.test_driver import Cart

LEFT = {"x": "left.yaw", "y": "-left.shoulder", "gripper": "left.gripper"}
RIGHT = {"x": "right.yaw", "y": 8, "gripper": "right.gripper"}


@pytest.fixture(scope="module")
def peg():
    env = GymnasiumEnv("cell/Insertion-v0", 1)
    yield env
    env.close()


@pytest.fixture(scope="module")
def two_arms():
    env = GymnasiumEnv("cell/PickAndPlace-v0", 1)
    yield env
    env.close()


def test_velocities_are_what_is_pushed(peg):
    jogger = Jogger(Jogging({"arm": {"x": "move.x", "z": "-move.z"}}, speed=0.5), peg)
    obs = peg.reset(0)
    moved = jogger.act(Wishes(hand="arm", motion={"x": 1.0, "z": 0.5}), obs)
    assert moved.tolist() == [0.5, 0.0, -0.25]
    assert jogger.act(Wishes(hand="arm"), obs).tolist() == [0.0, 0.0, 0.0]


def test_positions_begin_at_what_is_measured_and_only_one_arm_moves(two_arms):
    jogger = Jogger(Jogging({"left": LEFT, "right": RIGHT}, mode="position", speed=0.1), two_arms)
    obs = two_arms.reset(3)
    low, high = torch.tensor(arm.LOW * 2), torch.tensor(arm.HIGH * 2)
    measured = (obs[0, :14] - low) / (high - low) * 2 - 1
    first = jogger.act(Wishes(hand="left", motion={"x": 1.0, "y": 1.0}), obs)
    change = first - measured
    assert change[0] == pytest.approx(0.1, abs=1e-6)
    assert change[1] == pytest.approx(-0.1, abs=1e-6)
    assert change[2:].abs().max() < 1e-6
    second = jogger.act(Wishes(hand="right", motion={"y": -1.0}), obs)  # goes on from what was wanted, not measured
    assert (second - first)[8] == pytest.approx(-0.1, abs=1e-6)
    assert torch.equal(second[:8], first[:8])


class TurnedCart(Cart):
    """Names what lies around before its own state."""

    layout = replace(Cart.layout, low=np.array([-2.0]), high=np.array([2.0]),
                     numbers={"objects": ("box.x", "box.y"), "state": ("speed", "place")})  # fmt: skip

    def observe(self):
        return {"objects": np.array([7.0, 8.0], np.float32), "state": np.array([9.0, 0.5], np.float32)}


def make_turned(**options):
    return CellEnv(TurnedCart(), "turned", **options)


@pytest.mark.parametrize("observations", ["vector", "all"])
def test_positions_are_measured_wherever_the_state_lies(observations):
    options = {"observations": observations, "size": 8}
    env = GymnasiumEnv("tests.human.operators.test_jogging:make_turned", 1, env_kwargs=options, rescale_actions=True)
    jogger = Jogger(Jogging({"cart": {"x": "place"}}, mode="position", speed=0.1), env)
    assert jogger.act(Wishes(hand="cart"), env.reset(0)).tolist() == pytest.approx([0.25])  # 0.5 of -2 to 2
    env.close()


def test_where_nothing_tells_positions_begin_at_what_was_done_last():
    env = GymnasiumEnv(
        "tests.human.operators.test_jogging:make_turned", 1, rescale_actions=True, wrappers=[{"frame_stack": 2}]
    )
    jogger = Jogger(Jogging({"cart": {"x": "place"}}, mode="position", speed=0.1), env)
    jogger.watch(torch.tensor([-0.5]))
    assert jogger.act(Wishes(hand="cart"), env.reset(0)).tolist() == pytest.approx([-0.5])
    env.close()


def test_a_gripper_stays_as_it_was_told(two_arms):
    jogger = Jogger(Jogging({"left": LEFT, "right": RIGHT}, mode="position", speed=0.1), two_arms)
    obs = two_arms.reset(3)
    assert not jogger.is_closed("left")
    jogger.act(Wishes(hand="left", closes={"left": True}), obs)
    action = jogger.act(Wishes(hand="right", closes={"left": True}), obs)
    assert (action[6], action[13]) == (-1.0, pytest.approx(1.0, abs=0.06))
    assert jogger.is_closed("left")
    assert not jogger.is_closed("right")


def test_after_a_policy_acted_the_robot_does_not_jump_back(two_arms):
    jogger = Jogger(Jogging({"left": LEFT}, mode="position"), two_arms)
    obs = two_arms.reset(3)
    before = jogger.act(Wishes(hand="left", motion={"x": 1.0}), obs)
    jogger.watch(torch.zeros(14))
    assert not torch.equal(jogger.act(Wishes(hand="left"), obs), before)  # measured again


@pytest.mark.parametrize(
    ("jogging", "line"),
    [
        (Jogging({"arm": {"u": 0}}), "unknown axis in jogging.hands.arm 'u'"),
        (Jogging({"arm": {"x": "move.q"}}), "unknown jogging.hands.arm.x 'move.q'; did you mean"),
        (Jogging({"arm": {"x": 3}}), "unknown jogging.hands.arm.x '3'"),
        (Jogging({}), "jogging.hands: name one at least"),
        (Jogging({"arm": {"x": 0}}, speed=0.0), "jogging.speed more than 0"),
    ],
)
def test_bad_input_is_one_line(peg, jogging, line):
    with pytest.raises(ConfigError, match=line) as caught:
        Jogger(jogging, peg)
    assert "\n" not in str(caught.value)


def test_choices_cannot_be_jogged():
    env = GymnasiumEnv("CartPole-v1", 1)
    with pytest.raises(ConfigError, match="jogging moves a row of numbers, which actions of 'CartPole-v1' are not"):
        Jogger(ARM, env)
    env.close()
