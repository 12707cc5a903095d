"""Every kind of action space: what the agent sees, what the environment is given, and the same again in a replay."""

import numpy as np
import pytest
import torch

from rl_lab.core import Box, Discrete, EnvironmentFault, MultiDiscrete
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.actions import action_codec
from tests.environments import zoo
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)


def actor(kind, **kwargs):
    return GymnasiumEnv("tests.environments.zoo:Zoo/Actor-v0", 2, env_kwargs={"kind": kind}, **kwargs)


def sent(kind, action, rescale=None):
    """Return what an environment is given for one action of an agent."""
    codec = action_codec(zoo.ACTIONS[kind], rescale)
    one = {name: np.array([part]) for name, part in action.items()} if isinstance(action, dict) else None
    (given,), _ = codec.rows(np.array([action], codec.dtype) if one is None else codec.join(one))
    assert zoo.ACTIONS[kind].contains(given), given
    return given


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        ("binary", MultiDiscrete((2, 2, 2))),
        ("binary square", MultiDiscrete((2, 2, 2, 2))),
        ("square", MultiDiscrete((2, 3, 4, 5))),
        ("tuple", MultiDiscrete((3, 2, 2))),
        ("dict", MultiDiscrete((2, 3, 2, 4))),  # gymnasium sorts the keys: arm, gear
        ("whole", Box((2,), low=-2.0, high=7.0)),
        ("scalar", Box((), low=-1.0, high=3.0)),
        ("boxes", Box((3,), low=-1.0, high=1.0)),
        ("half bounded", Box((2,), low=-np.inf, high=np.inf)),
        ("mixture", {"0": Discrete(2), "1": Box((1,), low=-1.0, high=1.0)}),
        (
            "mixed",
            {
                "arm.grip": MultiDiscrete((2, 2)),
                "arm.turn.0": Box((), low=-2.0, high=2.0),
                "gear": Discrete(3),
                "pedals": Box((2,), low=-1.0, high=1.0),  # whose entries have bounds of their own
            },
        ),
    ],
)
def test_what_the_agent_sees_and_exact_state(kind, space):
    env, other = actor(kind), actor(kind)
    assert env.spec.action == space
    assert env.spec.exact_resume
    env.reset(0)
    actions = random_actions(env.spec, 2, 20)
    for action in actions[:10]:
        env.step(action)
    other.set_state(env.get_state())
    for action in actions[10:]:
        assert_equal(env.step(action), other.step(action))


def test_choices_get_the_shape_the_environment_asks_for():
    assert sent("binary", [1, 0, 1]).tolist() == [1, 0, 1]
    assert sent("binary", [1, 0, 1]).dtype == np.int8
    assert sent("binary square", [1, 0, 0, 1]).tolist() == [[1, 0], [0, 1]]
    assert sent("square", [1, 2, 0, 4]).tolist() == [[1, 3], [2, 7]]
    first, bits = sent("tuple", [0, 1, 0])
    assert (first, bits.tolist()) == (-1, [1, 0])
    nested = sent("dict", [1, 2, 0, 3])
    assert (nested["gear"], nested["arm"][0].tolist(), nested["arm"][1]) == (3, [1, 2], 0)


def test_whole_numbers_are_rounded_and_clipped():
    assert sent("whole", [3.4, 9.0]).tolist() == [3, 7]
    assert sent("whole", [-1.6, -5.0]).tolist() == [-2, -2]
    assert sent("whole", [0.0, 1.0], rescale=True).tolist() == [2, 7]  # 2.5 is halfway: to the even one
    assert sent("whole", [0.0, 1.0]).dtype == np.int32


def test_boxes_are_one_flat_box():
    given = sent("boxes", [0.0, 1.0, -0.5])  # pedals (two, from 0 to 10) before steer: keys are sorted
    assert given["pedals"].tolist() == [[5.0], [10.0]]
    assert given["steer"].tolist() == [-0.5]
    assert (given["pedals"].dtype, given["steer"].dtype) == (np.float64, np.float32)


MIXED = {"gear": 2, "pedals": [0.0, -3.0], "arm.grip": [0, 1], "arm.turn.0": 0.3}


def test_choices_and_numbers_are_one_dict():
    given = sent("mixed", MIXED)
    assert (given["gear"], given["arm"]["grip"].tolist()) == (1, [[0], [1]])
    assert given["pedals"].tolist() == [5.0, -1.0]
    assert given["arm"]["turn"][0] == np.float32(0.3)
    assert (given["pedals"].dtype, given["arm"]["turn"][0].dtype) == (np.float64, np.float32)
    assert sent("mixed", MIXED, rescale=False)["pedals"].tolist() == [0.0, -1.0]
    choice, (number,) = sent("mixture", {"0": 1, "1": [0.25]})
    assert (choice, number) == (1, 0.25)


def test_a_log_is_not_what_the_environment_writes_into():
    codec = action_codec(zoo.ACTIONS["mixed"])
    (given,), logged = codec.rows(codec.join({name: np.array([part]) for name, part in MIXED.items()}))
    given["pedals"] *= 7.0
    (again,) = codec.replay(np.array(logged))
    assert again["pedals"].tolist() == [5.0, -1.0]


def test_wrong_parts_of_a_mixed_action_are_named():
    env = GymnasiumEnv("tests.environments.zoo:Zoo/Pilot-v0", 2)
    env.reset(0)
    gear, pedals = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2)
    with pytest.raises(ValueError, match=r"'Zoo/Pilot-v0' are \['gear'\] instead of a dict of \['gear', 'pedals'\]"):
        env.step({"gear": gear})
    with pytest.raises(ValueError, match="'Zoo/Pilot-v0' are Tensor instead of a dict"):
        env.step(pedals)
    with pytest.raises(ValueError, match=r"'Zoo/Pilot-v0: pedals' have shape \(2,\) instead of \(2, 2\)"):
        env.step({"gear": gear, "pedals": pedals[0]})
    with pytest.raises(EnvironmentFault, match="'Zoo/Pilot-v0: pedals' was given NaN"):
        env.step({"gear": gear, "pedals": pedals + torch.nan})
    with pytest.raises(ValueError, match="'CartPole-v1' are a dict instead of one tensor"):
        GymnasiumEnv("CartPole-v1", 2).step({"gear": gear})


def test_rescaling_is_by_declaration():
    echo = zoo.Echo(own_bounds=False)
    assert action_codec(echo.action_space).bounds == (-2.0, 2.0)
    stretched = action_codec(echo.action_space, True)
    assert stretched.bounds == (-1.0, 1.0)
    rows, logged = stretched.rows(np.array([[0.5, -3.0]], np.float32))
    assert rows[0].tolist() == logged[0].tolist() == [1.0, -2.0]
    never = action_codec(zoo.Echo().action_space, False)
    assert never.bounds == (-1.0, 10.0)
    assert never.rows(np.array([[5.0, 20.0]], np.float32))[0][0].tolist() == [1.0, 10.0]


def test_only_bounded_entries_are_rescaled():
    assert sent("half bounded", [3.0, 9.0]).tolist() == [3.0, 4.0]
    assert sent("half bounded", [3.0, 0.5], rescale=True).tolist() == [3.0, 3.0]
    env = actor("half bounded", rescale_actions=True)
    assert env.spec.action == Box((2,), low=-np.inf, high=np.inf)


def test_the_option_reaches_the_environment():
    env = GymnasiumEnv("Pendulum-v1", 1, rescale_actions=True)
    assert env.spec.action == Box((1,), low=-1.0, high=1.0)
    theirs = GymnasiumEnv("Pendulum-v1", 1)
    assert theirs.spec.action == Box((1,), low=-2.0, high=2.0)
    env.reset(0)
    theirs.reset(0)
    assert_equal(env.step(torch.tensor([[0.25]])), theirs.step(torch.tensor([[0.5]])))
