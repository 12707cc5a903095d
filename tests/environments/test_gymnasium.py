"""The gymnasium adapter: spaces, exact state, and one line for whatever a foreign environment does wrong."""

import functools
import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch

from rl_lab.core import Box, ConfigError, Discrete, EnvironmentFault, MultiDiscrete, flat_dim
from rl_lab.environments.gymnasium import GymnasiumEnv
from tests.environments import zoo
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)


def test_it_steps_as_gymnasium_does():
    env = GymnasiumEnv("CartPole-v1", 2)
    obs = env.reset(0)
    words = np.random.SeedSequence(0).generate_state(2)
    theirs = [gymnasium.make("CartPole-v1") for _ in range(2)]
    for row, (their, word) in enumerate(zip(theirs, words, strict=True)):
        assert obs[row].tolist() == their.reset(seed=int(word) >> 1)[0].tolist()
    for action in random_actions(env.spec, 2, 100):
        step = env.step(action)
        for row, their in enumerate(theirs):
            expected, reward, terminated, truncated, _ = their.step(int(action[row]))
            assert step.final_observations[row].tolist() == expected.tolist()
            assert (step.rewards[row], step.terminated[row], step.truncated[row]) == (reward, terminated, truncated)
            if terminated or truncated:
                assert step.observations[row].tolist() == their.reset()[0].tolist()


def test_final_observations_are_the_same_object_while_nothing_ends():
    env = GymnasiumEnv("Pendulum-v1", 2, env_kwargs={"max_episode_steps": 2})
    env.reset(0)
    first, second = env.step(torch.zeros(2, 1)), env.step(torch.zeros(2, 1))
    assert first.final_observations is first.observations
    assert second.truncated.all()
    assert not torch.equal(second.final_observations, second.observations)


def test_specs_of_gymnasium_environments():
    cartpole, cheetah = GymnasiumEnv("CartPole-v1", 1).spec, GymnasiumEnv("HalfCheetah-v5", 1).spec
    assert (cartpole.observation, cartpole.action, cartpole.max_episode_steps) == (Box((4,)), Discrete(2), 500)
    assert (cheetah.observation, cheetah.action) == (Box((17,)), Box((6,), low=-1.0, high=1.0))
    assert cartpole.exact_resume
    assert GymnasiumEnv("FrozenLake-v1", 1).spec.observation == Box((16,))
    assert GymnasiumEnv("Pendulum-v1", 1, env_kwargs={"max_episode_steps": -1}).spec.max_episode_steps is None


def test_every_kind_of_observation():
    env = GymnasiumEnv("tests.environments.zoo:Zoo/Menagerie-v0", 2)
    assert env.spec.observation["image"] == Box((3, 6, 5), torch.uint8)
    assert env.spec.observation["gray"] == Box((1, 6, 5), torch.uint8)
    assert env.spec.observation["action_mask"] == Box((5,), torch.bool)
    assert env.spec.action == MultiDiscrete((2, 3))
    assert flat_dim(env.spec.action) == 5
    obs = env.reset(0)
    theirs = zoo.Menagerie()
    expected, _ = theirs.reset(seed=int(np.random.SeedSequence(0).generate_state(2)[0]) >> 1)
    assert np.array_equal(obs["image"][0].numpy(), np.moveaxis(expected["image"], -1, 0))
    assert np.array_equal(obs["gray"][0, 0].numpy(), expected["gray"])
    assert obs["place"][0].tolist() == [float(expected["place"] == value) for value in (-1, 0, 1, 2)]
    first, second = expected["pair"]
    assert obs["pair"][0].tolist() == [first == 0, first == 1, second == 0, second == 1, second == 2]
    assert obs["bits"][0].tolist() == expected["bits"].tolist()
    assert obs["wide"].dtype == torch.float32
    assert obs["action_mask"][0].tolist() == expected["action_mask"].astype(bool).tolist()
    assert env.step(torch.tensor([[1, 2], [0, 0]])).rewards.tolist() == [1 + 12, 0 + 10]


def test_actions_outside_equal_bounds_are_clipped():
    env = GymnasiumEnv("Zoo/Echo-v0", 1, env_kwargs={"own_bounds": False})
    assert env.spec.action == Box((2,), low=-2.0, high=2.0)
    env.reset(0)
    assert env.step(torch.tensor([[5.0, -0.5]])).observations.tolist() == [[2.0, -0.5]]


def test_unequal_bounds_are_stretched_from_minus_one_to_one():
    env = GymnasiumEnv("Zoo/Echo-v0", 1)
    assert env.spec.action == Box((2,), low=-1.0, high=1.0)
    env.reset(0)
    assert env.step(torch.tensor([[0.5, 0.0]])).observations.tolist() == [[0.5, 5.0]]
    assert env.step(torch.tensor([[-3.0, 1.0]])).observations.tolist() == [[-1.0, 10.0]]


def test_an_environment_may_write_into_its_action():
    env, other = GymnasiumEnv("Zoo/Echo-v0", 2), GymnasiumEnv("Zoo/Echo-v0", 2)
    env.reset(0)
    actions = random_actions(env.spec, 2, 20)
    kept = actions.clone()
    for action in actions[:10]:
        env.step(action)
    assert torch.equal(actions, kept)
    other.set_state(env.get_state())
    for action in actions[10:]:
        assert torch.equal(env.step(action).rewards, other.step(action).rewards)


@pytest.mark.parametrize(
    "name",
    ["Hopper-v5", "Ant-v5", "Walker2d-v5", "BipedalWalker-v3", "MountainCar-v0", "Taxi-v4"],
)
def test_state_is_exact(name):
    env, other = GymnasiumEnv(name, 2), GymnasiumEnv(name, 2)
    env.reset(8)
    actions = random_actions(env.spec, 2, 250)
    for action in actions[:130]:
        env.step(action)
    other.set_state(env.get_state())
    for action in actions[130:]:
        assert_equal(env.step(action), other.step(action))


def test_actions_are_kept_only_where_there_is_no_native_state():
    kept = {}
    for name in ("CartPole-v1", "Zoo/Faulty-v0"):
        env = GymnasiumEnv(name, 1)
        env.reset(0)
        for _ in range(4):
            env.step(torch.ones(1, dtype=torch.int64))
        (kept[name],) = env.get_state()["members"]
    assert "actions" not in kept["CartPole-v1"]
    assert kept["CartPole-v1"]["native"]["rng"]["bit_generator"] == "PCG64"
    assert kept["Zoo/Faulty-v0"]["actions"].tolist() == [1, 1, 1, 1]
    assert "native" not in kept["Zoo/Faulty-v0"]
    state = {"id": "CartPole-v1", "steps": 4, "members": [kept["Zoo/Faulty-v0"]]}
    with pytest.raises(EnvironmentFault, match="its state is native and the stored one replayed"):
        GymnasiumEnv("CartPole-v1", 1).set_state(state)


def test_a_replay_that_leads_elsewhere_is_a_fault():
    name = "Zoo/Faulty-v0"
    env = GymnasiumEnv(name, 2)
    env.reset(0)
    for action in random_actions(env.spec, 2, 5):
        env.step(action)
    state = env.get_state()
    state["members"][1]["observation"][""][0] += 1e-7
    with pytest.raises(EnvironmentFault, match=r"'Zoo/Faulty-v0' \(copy 1, .*restore\).*another observation"):
        GymnasiumEnv(name, 2).set_state(state)
    state = env.get_state()
    state["members"][0]["rng"]["state"]["state"] += 1
    with pytest.raises(EnvironmentFault, match=r"copy 0, .*another random state"):
        GymnasiumEnv(name, 2).set_state(state)
    state = env.get_state()
    state["members"][0]["actions"] = np.ones(500, np.int64)
    with pytest.raises(EnvironmentFault, match=r"copy 0, .*ended early"):
        GymnasiumEnv(name, 2).set_state(state)


def test_a_state_of_another_environment_is_refused():
    env = GymnasiumEnv("CartPole-v1", 2)
    env.reset(0)
    with pytest.raises(EnvironmentFault, match="3 x 'CartPole-v1' cannot go on from a state of 2 x 'CartPole-v1'"):
        GymnasiumEnv("CartPole-v1", 3).set_state(env.get_state())
    with pytest.raises(EnvironmentFault, match="Acrobot"):
        GymnasiumEnv("Acrobot-v1", 2).set_state(env.get_state())


@pytest.mark.parametrize("how", ["global stream", "hidden counter"])
def test_what_cannot_be_repeated_says_so(how):
    exact_resume = False if how == "global stream" else None  # found out
    env = GymnasiumEnv("Zoo/Unrepeatable-v0", 1, env_kwargs={"how": how}, exact_resume=exact_resume)
    assert not env.spec.exact_resume
    env.reset(0)
    env.step(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(EnvironmentFault, match="exact_resume is false"):
        env.set_state(env.get_state())


def test_exact_resume_can_be_declared():
    assert not GymnasiumEnv("CartPole-v1", 1, exact_resume=False).spec.exact_resume
    assert GymnasiumEnv("Zoo/Menagerie-v0", 1).spec.exact_resume
    with_wrapper = functools.partial(gymnasium.wrappers.NormalizeObservation, epsilon=1e-8)
    assert not GymnasiumEnv("CartPole-v1", 1, wrappers=[with_wrapper]).spec.exact_resume
    stacked = functools.partial(gymnasium.wrappers.FrameStackObservation, stack_size=3)
    env = GymnasiumEnv("CartPole-v1", 1, wrappers=[stacked])
    assert env.spec.exact_resume
    assert env.spec.observation == Box((3, 4))


FAULTS = {
    "raise": "raised KeyError: 'wheel'",
    "nan": "returned NaN or infinity in its observation",
    "shape": r"returned an observation of shape (2,) instead of (3,)",
    "broadcastable shape": r"returned an observation of shape (1,) instead of (3,)",
    "reward": "returned the reward inf",
}


@pytest.mark.parametrize(
    ("fault", "backend"), [*((fault, "sync") for fault in FAULTS), ("raise", "process"), ("nan", "process")]
)
def test_faults_are_one_line_with_copy_step_and_action(fault, backend):
    kwargs = {"backend": backend, "num_workers": 1, "env_kwargs": {"fault": fault}, "exact_resume": True}
    env = GymnasiumEnv("Zoo/Faulty-v0", 2, **kwargs)
    env.reset(0)
    for _ in range(2):
        env.step(torch.tensor([4, 2]))
    with pytest.raises(EnvironmentFault) as caught:
        env.step(torch.tensor([3, 1]))
    expected = f"environment 'Zoo/Faulty-v0' (copy 0, vector step 3, step with action 3) {FAULTS[fault]}"
    assert str(caught.value) == expected
    env.close()


@pytest.mark.parametrize("wrong", [-1, 2])
def test_an_action_outside_its_space_is_a_fault(wrong):
    env = GymnasiumEnv("CartPole-v1", 2)
    env.reset(0)
    with pytest.raises(EnvironmentFault, match=rf"\(copy 1, vector step 1, step with action {wrong}\) raised Assert"):
        env.step(torch.tensor([1, wrong]))


def test_a_fault_at_reset_is_named():
    env = GymnasiumEnv("Zoo/Faulty-v0", 2, env_kwargs={"fault": "raise at reset"})
    with pytest.raises(EnvironmentFault, match=r"\(copy 0, vector step 0, reset\) raised OSError: no such level"):
        env.reset(0)


def test_actions_that_are_not_finite_are_refused():
    env = GymnasiumEnv("HalfCheetah-v5", 1)
    env.reset(0)
    with pytest.raises(EnvironmentFault, match="was given NaN"):
        env.step(torch.full((1, 6), torch.nan))
    with pytest.raises(ValueError, match=re.escape("shape (2, 6) instead of (1, 6)")):
        env.step(torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"name": "CartPol-v1"}, r"environment.name 'CartPol-v1'; did you mean 'CartPole-v1'\? \(choices: .*CartPole"),
        ({"name": "no_such_module:Thing-v0"}, "environment.name 'no_such_module:Thing-v0'.*no_such_module"),
        ({"name": "CarRacing-fst"}, r"did you mean 'CarRacing-fast'\?.*module:function, dm_control/<domain>-<task>"),
        ({"name": "tests.environments.zoo:make_it"}, "'tests.environments.zoo:make_it': .*no function 'make_it'"),
        ({"name": "tests.environments.zoo:ACTIONS"}, "no function 'ACTIONS'"),
        ({"name": "tests.environments.rollouts:GymnasiumEnv"}, "belongs to rl_lab.environments.gymnasium: name it as"),
        ({"name": "tests.environments.zoo:make_informer"}, "env_kwargs does not fit .*length"),
        ({"name": "Zoo/Strange-v0"}, "environment.name 'Zoo/Strange-v0' has the unsupported space Text"),
        ({"name": "CartPole-v1", "env_kwargs": {"wheels": 3}}, "environment.env_kwargs does not fit .*wheels"),
        ({"name": "CartPole-v1", "backend": "threads"}, "environment.backend 'threads'.*choices: process, sync"),
        ({"name": "CartPole-v1", "num_envs": 0}, "environment.num_envs"),
        ({"name": "CartPole-v1", "on_crash": "ignore"}, "environment.on_crash 'ignore'.*choices: raise, restart"),
        ({"name": "CartPole-v1", "on_crash": "restart"}, "on_crash=restart .*backend=process"),
        ({"name": "CartPole-v1", "timeout_s": -1.0}, "environment.timeout_s must be more than 0"),
        ({"name": "CartPole-v1", "wrappers": ["grey"]}, "wrapper .*'grey'.*choices: .*grayscale"),
        (
            {"name": "Zoo/Unrepeatable-v0"},
            "'Zoo/Unrepeatable-v0' cannot be reset to a seed: two copies began differently .*exact_resume=false takes",
        ),
        ({"name": "Zoo/Seedless-v0"}, "'Zoo/Seedless-v0' cannot be reset to a seed: reset of Seedless takes none$"),
        (
            {"name": "Zoo/Actor-v0", "env_kwargs": {"kind": "empty"}},
            r"unsupported space Box.*\(0,\).* has no dimension$",
        ),
        ({"name": "Zoo/Actor-v0", "env_kwargs": {"kind": "half empty"}}, "the part 'pedals' of an action has no dimen"),
        (
            {"name": "Zoo/Actor-v0", "env_kwargs": {"kind": "text"}},
            "'Zoo/Actor-v0' has the unsupported space .* a Tuple or Dict of them$",
        ),
    ],
)
def test_wrong_config_is_named(kwargs, message):
    with pytest.raises(ConfigError, match=message) as caught:
        GymnasiumEnv(**{"num_envs": 1, **kwargs})
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=r"'LunarLander-v3' needs .*pip install 'rl-lab\[box2d\]'"):
        GymnasiumEnv("LunarLander-v3", 1)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("dm_control/cartpole-swingup", "dm_control", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("gym_pusht/PushT-v0", "gym_pusht", "pusht"),
    ],
)
def test_a_missing_package_of_a_family_names_its_extra(monkeypatch, name, package, extra):
    for module in [found for found in sys.modules if f"{found}.".startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'rl-lab\[{extra}\]'") as caught:
        GymnasiumEnv(name, 1)
    assert "\n" not in str(caught.value)


def test_render_returns_a_picture_only_when_asked():
    env = GymnasiumEnv("CartPole-v1", 1, env_kwargs={"render_mode": "rgb_array"})
    env.reset(0)
    picture = env.render()
    assert picture.shape == (400, 600, 3)
    assert picture.dtype == torch.uint8
    env.close()
    silent = GymnasiumEnv("CartPole-v1", 1)
    silent.reset(0)
    assert silent.render() is None


def test_nothing_is_written_to_the_terminal_or_the_working_directory(tmp_path):
    script = (
        "from rl_lab.environments.gymnasium import GymnasiumEnv\n"
        "for name in ('LunarLander-v3', 'HalfCheetah-v5', 'CartPole-v1'):\n"
        "    mode = {} if name == 'HalfCheetah-v5' else {'render_mode': 'rgb_array'}\n"
        "    env = GymnasiumEnv(name, 1, env_kwargs=mode)\n"
        "    env.reset(0)\n"
        "    env.render()\n"
        "    env.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []
