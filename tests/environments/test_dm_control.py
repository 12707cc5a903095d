import sys

import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments import dm_control
from rl_lab.environments.dm_control import make_env
from rl_lab.environments.exact.state import native_state, restore_native
from rl_lab.environments.gymnasium import GymnasiumEnv
from tests.environments.rollouts import assert_equal, random_actions

suite = dm_control.import_suite()
NAMES = [f"dm_control/{domain}-{task}" for domain, task in suite.ALL_TASKS]
CHANGED_MODEL = {"point_mass-hard": "wrap_prm", "reacher-easy": "geom_pos", "stacker-stack_2": "body_pos"}


def roll(env, actions):
    """Return every outcome as bytes and numbers, resets included."""
    outcomes = []
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        outcomes.append((obs.tobytes(), reward, terminated, truncated, info))
        if terminated or truncated:
            outcomes.append(env.reset()[0].tobytes())
    return outcomes


@pytest.mark.parametrize("name", NAMES)
def test_every_task_goes_on_to_the_bit_in_a_new_object(name):
    env, other = make_env(name, max_episode_steps=9), make_env(name, max_episode_steps=9)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (16, *env.action_space.shape)).astype(np.float32)
    env.reset(seed=1)
    states = {0: native_state(env)}
    outcomes = roll(env, actions[:4])
    states[4] = native_state(env)
    outcomes += roll(env, actions[4:])
    for start, state in states.items():
        restore_native(other, state)
        assert roll(other, actions[start:]) == outcomes[start:]
    env.close()
    other.close()


def test_there_are_51_tasks_and_some_change_their_model():
    assert len(NAMES) == 51
    for name, field in CHANGED_MODEL.items():
        env = make_env(f"dm_control/{name}")
        env.reset(seed=0)
        assert list(env.get_state()["model"]) == [field]
        env.close()


def test_the_state_is_what_the_suite_observes():
    env = make_env("dm_control/walker-walk")
    vector, _ = env.reset(seed=3)
    dm = env._dm
    for _ in range(3):
        vector, reward, *_ = env.step(np.full(6, 0.5, np.float32))
    seen = dm.task.get_observation(dm.physics)
    assert sorted(seen) == ["height", "orientations", "velocity"]
    by_hand = [seen["height"], *seen["orientations"], *seen["velocity"]]
    assert vector.dtype == np.float32
    assert vector.tolist() == np.array(by_hand, np.float32).tolist()
    assert reward == dm.task.get_reward(dm.physics)


def test_dict_pixels_and_both():
    spec = GymnasiumEnv("dm_control/walker-walk", 1, env_kwargs={"observations": "dict"}).spec
    assert {key: leaf.shape for key, leaf in spec.observation.items()} == {
        "height": (1,),
        "orientations": (14,),
        "velocity": (9,),
    }
    env = GymnasiumEnv("dm_control/cartpole-swingup", 1, env_kwargs={"observations": "pixels"})
    assert (env.spec.observation.shape, env.spec.observation.dtype) == ((3, 64, 64), torch.uint8)
    env.close()
    env = make_env("dm_control/reacher-easy", observations="pixels+state", size=(40, 48), camera_id="fixed")
    obs, _ = env.reset(seed=0)
    assert obs["pixels"].shape == (40, 48, 3)
    assert obs["state"].shape == (6,)
    assert len(np.unique(obs["pixels"])) > 20  # a picture of something
    env.close()


def test_pixels_go_on_to_the_bit():
    kwargs = {"observations": "pixels", "size": 32, "max_episode_steps": 5}
    env, other = (
        GymnasiumEnv("dm_control/reacher-easy", 1, env_kwargs=kwargs, wrappers=[{"action_repeat": 2}]) for _ in range(2)
    )
    env.reset(0)
    other.reset(1)
    for index, action in enumerate(random_actions(env.spec, 1, 7)):
        if index == 1:
            other.set_state(env.get_state())
        step = env.step(action)
        if index >= 1:
            assert_equal(step, other.step(action))
    env.close()
    other.close()


def test_terrain_is_drawn_as_it_was_saved():
    env, other = (make_env("dm_control/quadruped-escape", render_mode="rgb_array", render_size=24) for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=1)
    picture = env.render()
    assert not np.array_equal(picture, other.render())
    other.set_state(env.get_state())
    assert np.array_equal(picture, other.render())
    env.close()
    other.close()


def test_a_time_limit_truncates():
    env = GymnasiumEnv("dm_control/cartpole-balance", 2, env_kwargs={"max_episode_steps": 4})
    assert GymnasiumEnv("dm_control/cartpole-balance", 1).spec.max_episode_steps == 1000
    assert env.spec.max_episode_steps == 4
    env.reset(0)
    steps = [env.step(torch.zeros(2, 1)) for _ in range(5)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 3 + [[True] * 2, [False] * 2]
    assert not any(step.terminated.any() for step in steps)
    env.close()


def test_a_task_that_ends_itself_terminates():
    env = make_env("dm_control/lqr-lqr_2_1", max_episode_steps=50)
    assert GymnasiumEnv("dm_control/lqr-lqr_2_1", 1).spec.max_episode_steps is None  # it has no limit of its own
    env.reset(seed=0)
    physics = env._dm.physics
    with physics.reset_context():
        physics.data.qpos[:], physics.data.qvel[:] = 0.0, 0.0  # lqr is solved at rest
    _, _, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    assert (terminated, truncated) == (True, False)
    assert np.isinf(env.action_space.high).all()
    env.close()


def test_all_that_a_task_remembers_is_part_of_the_state():
    env, other = make_env("dm_control/point_mass-easy"), make_env("dm_control/point_mass-easy")
    for each in (env, other):
        each.reset(seed=0)
    task = env._dm.task
    task.path, task.best, task.seen, task.counts = [1, (2.0, "b")], np.float32(0.1), np.arange(3.0), {"a": [1]}
    state = native_state(env)
    task.path.append(5)  # what was saved is a copy
    task.seen[:] = 9.0
    task.counts["a"].append(2)
    restore_native(other, state)
    task = other._dm.task
    assert (task.path, task.counts, task.seen.tolist()) == ([1, (2.0, "b")], {"a": [1]}, [0.0, 1.0, 2.0])
    assert (type(task.best), task.best) == (np.float32, np.float32(0.1))
    task.seen[:] = 7.0
    restore_native(other, state)
    assert other._dm.task.seen.tolist() == [0.0, 1.0, 2.0]


def test_what_has_no_plain_form_is_replayed(monkeypatch):
    begin = suite.point_mass.PointMass.__init__

    def remember(task, *args, **kwargs):
        begin(task, *args, **kwargs)
        task.memory = {1, 2}

    monkeypatch.setattr(suite.point_mass.PointMass, "__init__", remember)
    env = GymnasiumEnv("dm_control/point_mass-easy", 1)
    assert env.spec.exact_resume
    env.reset(0)
    env.step(torch.zeros(1, 2))
    (member,) = env.get_state()["members"]
    assert "actions" in member
    assert "native" not in member


def test_a_seed_fixes_all_episodes():
    first, second = make_env("dm_control/swimmer-swimmer6"), make_env("dm_control/swimmer-swimmer6")
    starts = [[env.reset(seed=7)[0], env.reset()[0], env.reset()[0]] for env in (first, second)]
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0][0], starts[0][1])
    assert not np.array_equal(starts[0][0], first.reset(seed=8)[0])


@pytest.mark.parametrize(
    ("name", "kwargs", "text"),
    [
        (
            "cartpole-swing",
            {},
            "unknown environment.name 'dm_control/cartpole-swing'; did you mean 'dm_control/cartpole-s",
        ),
        (
            "walker-walk",
            {"observations": "rgb"},
            "environment.env_kwargs.observations is 'rgb' (choices: vector, dict, ",
        ),
        (
            "walker-walk",
            {"camera_id": "sid"},
            "environment.env_kwargs.camera_id is 'sid' (choices: -1, 0, 1, side, back)",
        ),
        (
            "walker-walk",
            {"max_episode_steps": 0},
            "environment.env_kwargs.max_episode_steps must be 1 or more, got 0",
        ),
        (
            "walker-walk",
            {"size": 0},
            "environment.env_kwargs.size must be one number or a height and a width, 1 or more",
        ),
        ("walker-walk", {"render_mode": "human"}, "environment.env_kwargs.render_mode is 'human' (choices: null, rgb_"),
        ("walker-walk", {"camera": 1}, "environment.env_kwargs does not fit 'dm_control/walker-walk': "),
    ],
)
def test_bad_input_is_one_line(name, kwargs, text):
    with pytest.raises(ConfigError) as error:
        GymnasiumEnv(f"dm_control/{name}", 1, env_kwargs=kwargs)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(ConfigError, match=r"needs a package that is not installed: pip install 'rl-lab\[mujoco\]'"):
        GymnasiumEnv("dm_control/walker-walk", 1)


def test_without_a_display_it_draws_off_screen(monkeypatch):
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(variable, raising=False)
    libraries = {"OSMesa"}
    monkeypatch.setattr(dm_control.ctypes.util, "find_library", lambda name: name if name in libraries else None)
    for found, backend in ((set(), "disable"), ({"OSMesa"}, "osmesa"), ({"OSMesa", "EGL"}, "egl")):
        monkeypatch.delenv("MUJOCO_GL", raising=False)
        libraries = found
        dm_control.import_suite()
        assert dm_control.os.environ["MUJOCO_GL"] == backend
