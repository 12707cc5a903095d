"""The insertion task: what it shows, when it is done, what it refuses, and that its state comes back to the bit."""

import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.cell import insertion
from rl_lab.human.cell.insertion import DECIMETRES, DEPTH, NAME, SPEED, TOP, make_env
from tests.environments.rollouts import assert_equal, random_actions
from tests.human.drawing import skip_without_a_renderer

DOWN = np.array([0.0, 0.0, -1.0], np.float32)


@pytest.fixture
def env():
    made = make_env(NAME)
    made.reset(seed=1)
    return made


def place(env, *way):
    """Put the tip so that the mouth of the hole lies `way` (metres) from it."""
    cell = env._driver
    cell.data.qpos[:] = cell.data.mocap_pos[0] + (0.0, 0.0, TOP) - np.array(way)
    cell.hold()


def test_observations_are_decimetres_and_episodes_differ(env):
    obs, info = env.reset(seed=3)
    cell = env._driver
    assert obs.shape == (12,)
    assert obs[:3] == pytest.approx(DECIMETRES * cell.data.qpos, rel=1e-6)
    assert obs[3:9] == pytest.approx(np.zeros(6))
    assert obs[9:] == pytest.approx(10.0 * (cell.data.mocap_pos[0] + (0, 0, 0.03) - cell.data.qpos), rel=1e-5)
    assert info == {"prompt": "insert the peg into the hole", "is_success": False}
    assert not np.allclose(env.reset()[0], obs)
    assert np.array_equal(env.reset(seed=3)[0], obs)


def test_an_action_moves_the_tool(env):
    place(env, 0.0, 0.0, -0.1)
    before = env._driver.data.qpos.copy()
    for _ in range(4):
        obs = env.step(np.array([1.0, 0.0, -0.5], np.float32))[0]
    for _ in range(6):  # the last of the way
        obs = env.step(np.zeros(3, np.float32))[0]
    moved = env._driver.data.qpos - before
    assert moved == pytest.approx([4 * SPEED, 0.0, -2 * SPEED], abs=2e-4)
    assert np.abs(obs[3:9]).max() < 0.01  # stands still, and its target is there


@pytest.mark.parametrize(("aside", "goes_in"), [(0.0, True), (0.0012, True), (0.003, False), (0.006, False)])
def test_only_a_peg_over_the_hole_goes_in(env, aside, goes_in):
    place(env, aside, 0.0, -0.01)
    for _ in range(15):
        obs, reward, terminated, truncated, info = env.step(DOWN)
        if terminated:
            break
    assert (terminated, reward, info["is_success"], truncated) == (goes_in, float(goes_in), goes_in, False)
    depth = obs[11] / DECIMETRES
    assert depth >= DEPTH if goes_in else abs(depth) < 0.002  # stands on the rim


def test_deep_beside_the_block_is_no_success(env):
    place(env, 0.08, 0.0, 0.025)
    assert env.step(np.zeros(3, np.float32))[2] is False


def test_the_time_limit_truncates():
    env = make_env(NAME, max_episode_steps=5)
    env.reset(seed=0)
    flags = [env.step(np.zeros(3, np.float32))[2:4] for _ in range(5)]
    assert flags == [(False, False)] * 4 + [(False, True)]


def test_forces_are_limited_and_what_is_not_finite_is_not_done(env):
    place(env, 0.01, 0.0, -0.001)
    for _ in range(10):
        env.step(DOWN)
    ahead = env._driver.data.ctrl[2] - env._driver.data.qpos[2]
    assert -0.0205 < ahead < -0.015  # as far ahead as the leash lets it
    obs = env.step(np.array([np.nan, 0.0, 0.0], np.float32))[0]
    assert obs[6:9] == pytest.approx(np.zeros(3), abs=1e-6)  # holds
    assert np.isfinite(obs).all()


def test_running_episodes_go_on_to_the_bit():
    env, other = (GymnasiumEnv(NAME, 3, env_kwargs={"max_episode_steps": 15}) for _ in range(2))
    assert env.spec.exact_resume
    assert env.spec.steps_per_second == 10.0
    env.reset(4)
    other.reset(9)
    for index, action in enumerate(random_actions(env.spec, 3, 50)):
        if index in (0, 7, 20):
            other.set_state(env.get_state())
        assert_equal(env.step(action), other.step(action))


def test_what_a_policy_must_know_is_described(env):
    facts = env.describe()
    assert facts["prompt"] == "insert the peg into the hole"
    assert facts["actions"] == ["move.x", "move.y", "move.z"]
    assert [len(names) for names in facts["observations"].values()] == [9, 3]
    vector = GymnasiumEnv(NAME, 1)
    assert vector.describe() == facts


def test_a_gantry_that_would_not_stop_at_its_ends_holds(env, monkeypatch):
    monkeypatch.setattr(insertion, "REACH_HIGH", insertion.REACH_HIGH + 1.0)  # its controller forgets where they are
    held = [env.step(np.array([0.0, 0.0, 1.0], np.float32))[4]["is_held"] for _ in range(40)]
    assert not held[0]
    assert held[-1]
    assert 0.18 < env._driver.data.qpos[2] < 0.20 + insertion.SPEED + 0.005


def test_pictures():
    skip_without_a_renderer()
    env = GymnasiumEnv(NAME, 2, env_kwargs={"observations": "all", "size": [48, 64], "render_mode": "rgb_array"})
    obs = env.reset(0)
    assert {name: tuple(leaf.shape[1:]) for name, leaf in obs.items()} == {
        **{"state": (9,), "objects": (3,)},
        **{"cam_high": (3, 48, 64), "cam_wrist": (3, 48, 64)},
    }
    assert obs["cam_high"].float().std() > 10.0
    assert not torch.equal(obs["cam_high"][0], obs["cam_high"][1])  # another hole
    assert env.render().shape == (240, 240, 3)
    state, action = env.get_state(), torch.full((2, 3), 0.3)
    once = env.step(action)
    env.set_state(state)
    assert_equal(once, env.step(action))
    env.close()


@pytest.mark.parametrize(
    ("name", "env_kwargs", "line"),
    [
        ("cell/Insertion-v9", {}, r"^unknown environment.name 'cell/Insertion-v9'; did you mean 'cell/Insertion-v0'"),
        (NAME, {"observations": "sound"}, r"env_kwargs.observations is 'sound' \(choices: vector, pixels, all\)"),
        (NAME, {"cameras": ["cam_low"]}, r"env_kwargs.cameras is 'cam_low' \(choices: cam_high, cam_wrist\)"),
        (NAME, {"clearance": 0.0}, r"env_kwargs.clearance must be 0.0002 or more, got 0.0"),
        (NAME, {"max_episode_steps": 0}, r"env_kwargs.max_episode_steps must be 1 or more, got 0"),
    ],
)
def test_bad_input_is_one_line(name, env_kwargs, line):
    with pytest.raises(ConfigError, match=line):
        GymnasiumEnv(name, 1, env_kwargs=env_kwargs)
