"""Two arms and a box: limits, kinematics computed by MuJoCo as well, success, exact state, the expert, pictures."""

import mujoco
import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.cell import arm
from rl_lab.human.cell.pick_and_place import NAME, PROMPT, make_env
from rl_lab.human.pick_and_place_expert import PickAndPlaceExpert
from tests.environments.rollouts import assert_equal
from tests.human.drawing import skip_without_a_renderer
from tests.human.test_experts import success_rate

torch.set_num_threads(1)


@pytest.fixture
def env():
    made = make_env(NAME)
    made.reset(seed=1)
    return made


def put(env, left, right):
    for side, place in (("left", left), ("right", right)):
        env._driver.data.joint(f"{side}_object").qpos[:3] = place


def test_it_is_two_arms_with_names_and_limits(env):
    obs, info = env.reset(seed=2)
    assert (env.action_space.shape, obs.shape, info["prompt"]) == ((14,), (20,), PROMPT)
    facts = env.describe()
    assert facts["actions"][:2] == ["left.yaw", "left.shoulder"]
    assert facts["actions"][6::7] == ["left.gripper", "right.gripper"]
    assert facts["cameras"] == ["cam_high", "cam_left_wrist", "cam_right_wrist"]
    assert facts["steps_per_second"] == env.steps_per_second == 10.0
    assert np.abs(obs[:6] - arm.HOME[:6]).max() <= 0.05 + 1e-6
    assert -3.2 <= obs[14] <= -1.7  # decimetres: an object on each side
    assert 1.7 <= obs[17] <= 3.2
    assert not np.allclose(env.reset()[0], obs)


def test_commands_keep_to_the_limits_of_speed_and_place(env):
    before = env._driver.home()
    env.step(np.full(14, 100.0, np.float32))
    assert env._driver.home() == pytest.approx(before + np.minimum(arm.MAX_STEP * 2, arm.HIGH * 2 - before))
    for _ in range(30):
        env.step(np.full(14, 100.0, np.float32))
    assert env._driver.home() == pytest.approx(np.array(arm.HIGH * 2))
    held = env._driver.data.qpos[env._driver._angles].ravel()
    obs = env.step(np.full(14, np.nan, np.float32))[0]
    assert np.isfinite(obs).all()
    assert np.abs(np.delete(obs[:14], (6, 13)) - held).max() < 0.05  # it stands where it was


def test_kinematics_are_those_of_the_simulator(env):
    expert, driver, rng = PickAndPlaceExpert(), env._driver, np.random.default_rng(0)
    for _ in range(20):
        angles = rng.uniform((-1, -0.5, -0.3, 0, -0.5, -1), (1, 1, 1, 0, 1.5, 1), (2, 6))  # no roll of the forearm
        driver.data.qpos[driver._angles] = angles
        mujoco.mj_kinematics(driver.model, driver.data)
        seen = [driver.data.site(f"{side}_tool").xpos for side in arm.SIDES]
        joints = torch.tensor(driver.observe()["state"]).view(1, 2, 7)
        assert expert.tool(joints)[0].numpy() == pytest.approx(np.stack(seen), abs=1e-5)


def test_a_command_that_would_press_a_tool_into_the_table_is_not_carried_out(env):
    driver, expert = env._driver, PickAndPlaceExpert()
    command = driver.home().reshape(2, 7)
    for height, is_held in ((0.018, False), (-0.05, True)):
        place = torch.tensor([[[-0.25, -0.05, 0.15], [0.25, -0.05, height]]])
        command[:, :6] = expert.angles(place)[0].double().numpy()
        driver.data.qpos[driver._angles] = command[:, :6]  # it is there already: no limit of speed
        driver._command(command)
        env._last = command.ravel()
        assert np.abs(driver.pose(command.ravel()) - place.flatten().numpy()).max() < 1e-3
        standing = driver.data.qpos[driver._angles].copy()
        info = env.step(command.ravel())[4]
        assert info["is_held"] == is_held
        assert np.abs(driver.data.qpos[driver._angles] - standing).max() < 0.02
    limits = env.describe()["limits"]
    assert limits["pose_low"] == [-0.8, -0.8, -0.02] * 2
    assert limits["max_step"][0] == 0.2
    assert limits["max_action_age_s"] is None  # a simulation waits


def test_angles_bring_the_tool_there_pointing_down(env):
    expert, driver = PickAndPlaceExpert(), env._driver
    goal = torch.tensor([[[-0.2, -0.1, 0.02], [0.04, 0.05, 0.12]]])
    driver.data.qpos[driver._angles] = expert.angles(goal)[0].numpy()
    mujoco.mj_kinematics(driver.model, driver.data)
    for side, place in zip(arm.SIDES, goal[0].numpy(), strict=True):
        assert driver.data.site(f"{side}_tool").xpos == pytest.approx(place, abs=1e-5)
        turned = driver.data.site(f"{side}_tool").xmat.reshape(3, 3)
        assert turned[:, 0] == pytest.approx([0, 0, -1], abs=1e-5)
        assert np.abs(turned[:, 1]) == pytest.approx([0, 1, 0], abs=1e-5)  # fingers along y


def test_objects_begin_in_a_share_of_their_area():
    small = make_env(NAME, spread=0.25)
    places = np.array([small.reset(seed=seed)[0][[14, 15, 17, 18]] for seed in range(100)]) / 10.0  # metres
    middle, half = np.array([-0.245, -0.065, 0.245, -0.065]), np.array([0.075, 0.065, 0.075, 0.065]) / 4.0
    assert (np.abs(places - middle) <= half + 1e-6).all()
    assert (np.abs(places - middle).max(0) > 0.9 * half).all()


@pytest.mark.parametrize("spread", [-0.1, 1.5])
def test_a_share_that_is_none_is_one_line(spread):
    with pytest.raises(ConfigError, match=rf"env_kwargs.spread must be 0 to 1, got {spread}$"):
        make_env(NAME, spread=spread)


def test_success_is_both_objects_in_the_box_and_open_grippers(env):
    inside, outside = (-0.04, 0.05, 0.03), (0.2, -0.1, 0.018)
    put(env, inside, (0.04, 0.05, 0.03))
    assert env._driver.is_success()
    put(env, inside, outside)
    assert not env._driver.is_success()
    put(env, inside, (0.04, 0.05, 0.15))  # still in the air
    assert not env._driver.is_success()
    put(env, inside, (0.04, 0.05, 0.03))
    env._driver.data.qpos[env._driver._fingers[1]] = -0.011  # as around an object
    assert not env._driver.is_success()


def test_the_expert_puts_both_objects_into_the_box():
    assert success_rate(GymnasiumEnv(NAME, 5), PickAndPlaceExpert(0.002), 10) >= 0.8


def test_what_remains_falls_while_the_expert_works():
    env, expert = GymnasiumEnv(NAME, 4), PickAndPlaceExpert()
    obs, left = env.reset(0), []
    for _ in range(60):
        left.append(expert.remaining(obs))
        step = env.step(expert.plan(obs))
        obs = step.observations
        if step.terminated.any():
            break
    assert step.terminated.any()
    final = expert.remaining(step.final_observations)[step.terminated]
    assert (final <= expert.done_at).all()
    assert (left[-1] < 0.2 * left[0]).all()


def test_a_running_grasp_goes_on_to_the_bit():
    env, other, expert = GymnasiumEnv(NAME, 2), GymnasiumEnv(NAME, 2), PickAndPlaceExpert()
    obs = env.reset(3)
    other.reset(8)
    for index in range(16):
        if index in (2, 9):
            other.set_state(env.get_state())
        actions = expert.plan(obs)
        step = env.step(actions)
        if index >= 2:
            assert_equal(step, other.step(actions))
        obs = step.observations


def test_three_cameras():
    skip_without_a_renderer()
    env = GymnasiumEnv(NAME, 1, env_kwargs={"observations": "pixels", "size": [48, 64]})
    obs = env.reset(0)
    assert obs.keys() == {"state", "cam_high", "cam_left_wrist", "cam_right_wrist"}
    assert {tuple(obs[name].shape) for name in obs.keys() - {"state"}} == {(1, 3, 48, 64)}
    assert min(obs[name].float().std() for name in obs.keys() - {"state"}) > 10.0
    env.close()
    large = make_env(NAME, observations="pixels", cameras=["cam_high"], size=224)
    assert large.reset(seed=0)[0]["cam_high"].shape == (224, 224, 3)
    large.close()
