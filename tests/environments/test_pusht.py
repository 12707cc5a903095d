import sys

import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.pusht import make_env
from tests.environments.rollouts import assert_equal, random_actions

NAME = "gym_pusht/PushT-v0"


def pusht(num_envs, **env_kwargs):
    return GymnasiumEnv(NAME, num_envs, env_kwargs=env_kwargs, rescale_actions=True)


@pytest.mark.parametrize(
    ("obs_type", "shapes"),
    [
        ("state", {"": (5,)}),
        ("pixels", {"": (3, 96, 96)}),
        ("pixels_agent_pos", {"pixels": (3, 96, 96), "agent_pos": (2,)}),
        ("environment_state_agent_pos", {"environment_state": (16,), "agent_pos": (2,)}),
    ],
)
def test_observations_and_limit(obs_type, shapes):
    env = pusht(1, obs_type=obs_type)
    leaves = env.spec.observation if isinstance(env.spec.observation, dict) else {"": env.spec.observation}
    assert {name: leaf.shape for name, leaf in leaves.items()} == shapes
    assert env.spec.max_episode_steps == 300
    assert env.spec.exact_resume
    env.close()


def test_actions_are_positions_between_0_and_512():
    env, bare = pusht(1), make_env(NAME)
    env.reset(5)
    bare.reset(seed=int(np.random.SeedSequence(5).generate_state(1)[0]) >> 1)
    for action in torch.tensor([[-1.0, 1.0], [0.0, 0.5], [0.25, -0.75]]):
        step = env.step(action[None])
        obs, reward, _, _, _ = bare.step((256.0 * (action.numpy() + 1.0)).astype(np.float32))
        assert step.observations[0].numpy() == pytest.approx(obs, rel=1e-6)
        assert step.rewards.item() == pytest.approx(reward)


def test_success_is_reported_and_ends_the_episode():
    env = make_env(NAME)
    env.reset(seed=0)
    # the goal pose is (256, 256) at 45 degrees; the pusher stands out of the way
    _, info = env.reset(options={"reset_to_state": [50.0, 50.0, 256.0, 256.0, np.pi / 4]})
    assert info["is_success"] is False
    env.unwrapped.block.angle, env.unwrapped.block.position = np.pi / 4, (256.0, 256.0)
    _, reward, terminated, truncated, info = env.step(np.array([50.0, 50.0], np.float32))
    assert (reward, bool(terminated), truncated, bool(info["is_success"])) == (1.0, True, False, True)


@pytest.mark.parametrize(("obs_type", "num_envs", "length"), [("state", 2, 25), ("pixels_agent_pos", 1, 8)])
def test_replay_continues_to_the_bit_across_resets(obs_type, num_envs, length):
    env, other = (pusht(num_envs, obs_type=obs_type, max_episode_steps=length) for _ in range(2))
    actions = random_actions(env.spec, num_envs, 3 * length)
    env.reset(4)
    other.reset(9)
    for index, action in enumerate(actions):
        if index in (0, length // 2, length + 3):
            other.set_state(env.get_state())
        assert_equal(env.step(action), other.step(action))


def test_bad_input_is_one_line():
    with pytest.raises(ConfigError, match=r"^unknown environment.name 'gym_pusht/PushX-v0'; did you mean 'gym_pusht/P"):
        GymnasiumEnv("gym_pusht/PushX-v0", 1)
    with pytest.raises(ConfigError, match=r"^environment.env_kwargs.obs_type is 'sound' \(choices: state, pixels, "):
        pusht(1, obs_type="sound")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym_pusht", None)
    with pytest.raises(ConfigError, match=r"needs a package that is not installed: pip install 'rl-lab\[pusht\]'"):
        pusht(1)
