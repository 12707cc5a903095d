"""ALOHA's tasks: what is observed, what a reward means, and that an episode goes on to the bit."""

import sys

import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments import aloha
from rl_lab.environments.gymnasium import GymnasiumEnv
from tests.environments.rollouts import assert_equal, random_actions

pytest.importorskip("dm_control")
CUBE, PEG = "gym_aloha/AlohaTransferCube-v0", "gym_aloha/AlohaInsertion-v0"


@pytest.fixture
def package():
    return pytest.importorskip("gym_aloha")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("name", "width"), [(CUBE, 14 + 14 + 7), (PEG, 14 + 14 + 2 * 7)])
def test_the_state_is_joints_speeds_and_objects(name, width):
    env = aloha.make_env(name)
    obs, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    other, _ = env.reset()
    assert obs.shape == (width,)
    assert np.array_equal(obs, again)
    assert np.array_equal(obs[:28], other[:28])  # the arms begin in one place, the objects do not
    assert not np.array_equal(obs[28:30], other[28:30])
    assert obs[:6].tolist() == pytest.approx([0.0, -0.96, 1.16, 0.0, -0.3, 0.0])
    env.close()


@pytest.mark.usefixtures("package")
def test_arms_go_to_where_actions_say_and_grippers_open():
    env = aloha.make_env(CUBE)
    obs, _ = env.reset(seed=0)
    wanted = obs[:14].copy()
    wanted[[0, 6]] = 0.3, 0.9
    for _ in range(60):
        obs, reward, terminated, truncated, info = env.step(wanted)
    assert obs[[0, 6]].tolist() == pytest.approx([0.3, 0.9], abs=0.05)
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"is_success": False})
    env.close()


@pytest.mark.usefixtures("package")
def test_arms_do_not_jump_and_random_actions_are_survived():
    env, generator = aloha.make_env(CUBE), np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    env.step(obs[:14] - 1.0)
    told = np.delete(env._dm.physics.data.ctrl, [6, 7, 14, 15])
    assert told == pytest.approx(np.delete(obs[:14], [6, 13]) - 0.1, abs=1e-3)
    for _ in range(200):
        _, _, terminated, truncated, _ = env.step(generator.uniform(env.action_space.low, env.action_space.high))
    assert (terminated, truncated) == (False, False)
    env.close()


@pytest.mark.usefixtures("package")
def test_a_cube_in_the_left_hand_is_a_success_and_one_on_the_table_is_not():
    env = aloha.make_env(CUBE)
    obs, _ = env.reset(seed=0)
    physics, hold = env._dm.physics, obs[:14].copy()
    hold[6] = 1.0
    for _ in range(40):  # let it open
        _, reward, *_ = env.step(hold)
    assert reward == 0.0
    fingers = [f"vx300s_left/10_{side}_gripper_finger" for side in ("left", "right")]
    physics.named.data.qpos["red_box_joint"][:3] = np.mean([physics.named.data.geom_xpos[f] for f in fingers], axis=0)
    hold[6] = 0.0
    rewards = []
    for _ in range(40):
        _, reward, terminated, _, info = env.step(hold)
        rewards.append(reward)
        if terminated:
            break
    assert (rewards[-1], terminated, info) == (4.0, True, {"is_success": True})
    env.close()


@pytest.mark.usefixtures("package")
def test_a_running_episode_goes_on_to_the_bit_across_resets():
    env, other = (GymnasiumEnv(CUBE, 2, env_kwargs={"max_episode_steps": 12}, rescale_actions=True) for _ in range(2))
    assert env.spec.exact_resume
    assert env.spec.action.shape == (14,)
    actions = random_actions(env.spec, 2, 30)
    env.reset(4)
    other.reset(9)
    for index, action in enumerate(actions):
        if index in (0, 7, 15):
            other.set_state(env.get_state())
        assert_equal(env.step(action), other.step(action))
    env.close(), other.close()


@pytest.mark.usefixtures("package")
def test_pictures_are_of_the_cameras_and_the_size_that_were_asked_for():
    cameras = ["top", "right_wrist"]
    options = {"observations": "pixels_agent_pos", "cameras": cameras, "size": [24, 32], "shadows": False}
    env = GymnasiumEnv(PEG, 1, env_kwargs=options)
    shapes = {name: leaf.shape for name, leaf in env.spec.observation.items()}
    assert shapes == {"top": (3, 24, 32), "right_wrist": (3, 24, 32), "agent_pos": (14,)}
    seen = env.reset(0)
    assert all(len(torch.unique(seen[name])) > 10 for name in cameras)
    assert not torch.equal(seen["top"], seen["right_wrist"])
    env.close()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"observations": "sound"}, r"env_kwargs.observations is 'sound' \(choices: state, pixels, pixels_agent_pos"),
        ({"cameras": ["front"]}, r"env_kwargs.cameras is 'front' \(choices: .*top, angle"),
        ({"max_episode_steps": 0}, "env_kwargs.max_episode_steps must be 1 or more, got 0"),
    ],
)
def test_bad_options_are_one_line(options, line):
    with pytest.raises(ConfigError, match=f"^environment.{line}"):
        GymnasiumEnv(CUBE, 1, env_kwargs=options)


def test_an_unknown_task_and_a_missing_package_are_one_line(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"^unknown environment.name 'gym_aloha/AlohaX-v0'; did you mean 'gym_aloha/A"
    ):
        GymnasiumEnv("gym_aloha/AlohaX-v0", 1)
    monkeypatch.setitem(sys.modules, "gym_aloha", None)
    monkeypatch.setattr(aloha, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs gym-aloha: pip install --no-deps gym-aloha \(it works with"):
        GymnasiumEnv(CUBE, 1)
