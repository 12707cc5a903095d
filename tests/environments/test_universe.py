"""Softlearning's names, and what is said about those the lab does not have."""

import pytest

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.universe import is_universe_name, translate


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gym/HalfCheetah/v5", "HalfCheetah-v5"),
        ("gym/HalfCheetah/v3", "HalfCheetah-v5"),
        ("gym/Walker2d/v2", "Walker2d-v5"),
        ("gym/HalfCheetah/v4", "HalfCheetah-v4"),
        ("gym/Ant/Parameterizable-v3", "Ant-v5"),
        ("gym/Pendulum/v0", "Pendulum-v1"),
        ("gym/CartPole/v0", "CartPole-v0"),
        ("gym/MountainCarContinuous/v0", "MountainCarContinuous-v0"),
        ("gym/LunarLanderContinuous/v2", "LunarLanderContinuous-v3"),
        ("dm_control/cartpole/swingup", "dm_control/cartpole-swingup"),
        ("dm_control/finger/turn_easy", "dm_control/finger-turn_easy"),
        ("dm_control/ball_in_cup/catch", "dm_control/ball_in_cup-catch"),
    ],
)
def test_names_are_translated(theirs, ours):
    assert is_universe_name(theirs)
    assert not is_universe_name(ours)
    assert translate(theirs) == ours


def test_an_environment_answers_to_them():
    env = GymnasiumEnv("gym/Pendulum/v0", 1)
    assert env.spec.id == "Pendulum-v1"
    assert GymnasiumEnv("gym/Hopper/v3", 1).spec.id == "Hopper-v5"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "robosuite/Sawyer/Lift",
            r"'robosuite/Sawyer/Lift': unknown universe 'robosuite' \(choices: dm_control, gym\)",
        ),
        ("gymn/HalfCheetah/v3", "unknown universe 'gymn'; did you mean 'gym'"),
        (
            "gym/MultiGoal/Default-v0",
            "'gym/MultiGoal/Default-v0' is a batch of tensors here: choose environment=multigoal",
        ),
        ("gym/HalfCheeta/v3", r"'HalfCheeta-v3'; did you mean 'HalfCheetah-v\d'"),
        ("gym/Pusher2d/Default-v0", "unknown environment.name 'Pusher2d-Default-v0'"),
        ("dm_control/cartpole/swing", "'dm_control/cartpole-swing'; did you mean 'dm_control/cartpole-swingup'"),
    ],
)
def test_unknown_names_are_answered_in_one_line(name, message):
    with pytest.raises(ConfigError, match=message) as caught:
        GymnasiumEnv(name, 1)
    assert "\n" not in str(caught.value)


def test_modules_and_ids_are_left_alone():
    for name in ("package.module:Some/Id-v0", "ALE/Pong-v5", "CartPole-v1", "a/b:c/d/e"):
        assert not is_universe_name(name)
