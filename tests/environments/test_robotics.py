import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch

from rl_lab.buffers.hindsight import HindsightBuffer
from rl_lab.core import ConfigError, tree_map
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.registry import find_recipe
from rl_lab.environments.robotics import make_env, task_names
from rl_lab.ops.goal_rewards import SparseDistance
from tests.environments.rollouts import assert_equal, random_actions
from tests.environments.test_reach import rollout

torch.set_num_threads(1)
installed = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium_robotics") is None, reason="needs the extra robotics"
)


@installed
@pytest.mark.parametrize(
    ("name", "widths", "actions", "limit"),
    [  # as gymnasium-robotics documents them
        ("FetchReach-v4", (10, 3), 4, 50),
        ("FetchPushDense-v4", (25, 3), 4, 50),
        ("HandReach-v3", (63, 15), 20, 50),
        ("HandManipulateEgg_BooleanTouchSensors-v1", (153, 7), 20, 100),
    ],
)
def test_observations_and_limit(name, widths, actions, limit):
    env = GymnasiumEnv(name, 1)
    observation, goal = widths
    shapes = {"observation": (observation,), "achieved_goal": (goal,), "desired_goal": (goal,)}
    assert {key: leaf.shape for key, leaf in env.spec.observation.items()} == shapes
    assert (env.spec.action.shape, env.spec.action.low, env.spec.action.high) == ((actions,), -1.0, 1.0)
    assert (env.spec.max_episode_steps, env.spec.exact_resume) == (limit, True)
    assert "native" in env.get_state()["members"][0]
    env.close()


@installed
def test_the_gripper_reaches_every_goal_by_the_straight_way():
    env = GymnasiumEnv("FetchReach-v4", 5, info_keys=["is_success"])
    obs, rewards = env.reset(3), []
    # the robot stands at the table: where the task's page says that it does
    assert obs["achieved_goal"][0].tolist() == pytest.approx([1.3419, 0.7491, 0.5347], abs=1e-3)
    for _ in range(50):
        towards = 8.0 * (obs["desired_goal"] - obs["achieved_goal"])
        step = env.step(torch.nn.functional.pad(towards, (0, 1)).clamp(-1.0, 1.0))
        obs = step.observations
        rewards.append(step.rewards)
    assert step.truncated.all()
    assert step.infos["is_success"].tolist() == [1.0] * 5
    assert torch.stack(rewards)[[0, -1]].tolist() == [[-1.0] * 5, [0.0] * 5]


@installed
def test_joints_are_read_and_written_where_the_model_has_them():
    base = make_env("FetchPush-v4").unwrapped
    model, data, utils = base.model, base.data, base._utils
    for index in range(model.njnt):
        name, kind = model.joint(index).name, int(model.jnt_type[index])
        for read, write, array, first, width in (
            (utils.get_joint_qpos, utils.set_joint_qpos, data.qpos, model.jnt_qposadr, (7, 4, 1, 1)),
            (utils.get_joint_qvel, utils.set_joint_qvel, data.qvel, model.jnt_dofadr, (6, 3, 1, 1)),
        ):
            place = slice(first[index], first[index] + width[kind])
            value, others = np.arange(1.0, 1.0 + width[kind]), np.delete(array, place)
            write(model, data, name, value)
            assert np.array_equal(array[place], value)
            assert np.array_equal(read(model, data, name), value)
            assert np.array_equal(np.delete(array, place), others)


@installed
def test_hindsight_gives_the_rewards_that_the_environment_computes():
    env, judge = GymnasiumEnv("FetchReach-v4", 4), make_env("FetchReach-v4").unwrapped
    trajectory = rollout(env, random_actions(env.spec, 4, 110))
    buffer = HindsightBuffer(440, 256, SparseDistance(0.05), num_envs=4, spec=env.spec)
    buffer.add(trajectory)
    batch = tree_map(lambda *leaves: torch.cat(leaves), *(buffer.sample() for _ in range(4)))
    achieved, desired = (batch["next_observations"][key].numpy() for key in ("achieved_goal", "desired_goal"))
    assert np.array_equal(batch["rewards"].numpy(), judge.compute_reward(achieved, desired, {}))
    assert not torch.equal(batch["rewards"], torch.full((1024,), -1.0))
    asked = set(map(tuple, trajectory["observations"]["desired_goal"].flatten(0, 1).tolist()))
    kept = np.mean([tuple(goal) in asked for goal in desired.tolist()])
    assert kept == pytest.approx(0.2, abs=0.05)  # of 1024: four standard errors
    assert not batch["terminated"].any()


@installed
@pytest.mark.parametrize("name", ["FetchPickAndPlace-v4", "HandManipulateBlock_ContinuousTouchSensors-v1"])
def test_state_continues_to_the_bit_across_resets(name):
    env, other = (
        GymnasiumEnv(name, 1, env_kwargs={"max_episode_steps": 15}, info_keys=["is_success"]) for _ in range(2)
    )
    env.reset(4)
    other.reset(9)
    for index, action in enumerate(random_actions(env.spec, 1, 45)):
        if index in (0, 7, 18):
            other.set_state(env.get_state())
        assert_equal(env.step(action), other.step(action))


@installed
def test_drawing_leaves_no_trace():
    size = {"render_mode": "rgb_array", "width": 64, "height": 48}
    drawn, unseen = (GymnasiumEnv("FetchPickAndPlace-v4", 1, env_kwargs=options) for options in (size, {}))
    drawn.reset(1)
    unseen.reset(1)
    for action in random_actions(drawn.spec, 1, 12):
        picture = drawn.render()
        assert_equal(drawn.step(action), unseen.step(action))
    assert (picture.shape, picture.dtype) == ((48, 64, 3), torch.uint8)
    assert picture.float().std() > 10.0
    drawn.close()


@installed
def test_nothing_is_written_to_the_terminal_or_the_working_directory(tmp_path):
    script = (
        "from rl_lab.environments.hosting.recipe import Factory, Recipe\n"
        "Recipe('x', Factory('rl_lab.environments.robotics:make_env', ('FetchPush-v4',)), {}).make().reset(seed=0)\n"
        "import sys\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


@installed
def test_bad_input_is_one_line():
    assert {"FetchReach-v4", "FetchSlideDense-v4", "HandReach-v3"} <= set(task_names())
    with pytest.raises(ConfigError, match=r"^unknown environment.name 'FetchReach-v1'; did you mean 'FetchReach-v4'\?"):
        GymnasiumEnv("FetchReach-v1", 1)  # needs mujoco-py
    with pytest.raises(ConfigError, match=r"^environment.env_kwargs does not fit 'FetchReach-v4': .*'goals'"):
        GymnasiumEnv("FetchReach-v4", 1, env_kwargs={"goals": 2})


@pytest.mark.parametrize("package", ["mujoco", "gymnasium_robotics"])
def test_a_missing_package_names_its_extra(monkeypatch, package):
    for module in [name for name in sys.modules if f"{name}.".startswith("gymnasium_robotics.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"'FetchReach-v4' needs .*: pip install 'rl-lab\[robotics\]'"):
        GymnasiumEnv("FetchReach-v4", 1)


@pytest.mark.parametrize("name", ["FetchReach-v4", "HandReach-v3", "HandManipulatePen-v1"])
def test_the_family_is_found_by_its_names(name):
    assert find_recipe(name, {}, ()).source.entry_point == "rl_lab.environments.robotics:make_env"
