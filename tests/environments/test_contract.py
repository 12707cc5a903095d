"""What every environment of the lab promises, checked on all of them."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch

from rl_lab.core import Box, tree_leaves, tree_map
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.counting import Counting
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.identity import Identity
from rl_lab.environments.lock import Lock
from rl_lab.environments.memory import Memory
from rl_lab.environments.minatar.asterix import MinAtarAsterix
from rl_lab.environments.minatar.breakout import MinAtarBreakout
from rl_lab.environments.minatar.freeway import MinAtarFreeway
from rl_lab.environments.minatar.space_invaders import MinAtarSpaceInvaders
from rl_lab.environments.pendulum import Pendulum
from rl_lab.environments.point_tasks import PointTasks
from tests.environments.rollouts import assert_equal, continue_gymnasium, random_actions

torch.set_num_threads(1)


def gymnasium_env(name, **kwargs):
    return lambda: GymnasiumEnv(name, 3, **kwargs)


SHORT = {"max_episode_steps": 40}
ENVIRONMENTS = {
    "identity": lambda: Identity(5),
    "identity masked": lambda: Identity(5, masked=True),
    "identity multi": lambda: Identity(5, kind="multi_discrete", sizes=(2, 3), masked=True),
    "identity continuous": lambda: Identity(5, kind="continuous", sizes=(1, 1)),
    "counting": lambda: Counting(5),
    "memory": lambda: Memory(5),
    "lock": lambda: Lock(5, turns=2, choices=2),
    "cartpole": lambda: CartPole(5, max_episode_steps=25),
    "point tasks": lambda: PointTasks(5, episode_steps=(7, 9, 8)),
    "pendulum": lambda: Pendulum(5, max_episode_steps=30),
    "minatar Breakout": lambda: MinAtarBreakout(5),
    "minatar Asterix": lambda: MinAtarAsterix(5, **SHORT),
    "minatar Freeway": lambda: MinAtarFreeway(5, **SHORT),
    "minatar SpaceInvaders": lambda: MinAtarSpaceInvaders(5),
    "gym CartPole": gymnasium_env("CartPole-v1", env_kwargs={"max_episode_steps": 20}),
    "gym Acrobot": gymnasium_env("Acrobot-v1", env_kwargs=SHORT),
    "gym Pendulum": gymnasium_env("Pendulum-v1", env_kwargs=SHORT),
    "gym LunarLander": gymnasium_env("LunarLander-v3"),
    "gym HalfCheetah": gymnasium_env("HalfCheetah-v5", env_kwargs=SHORT),
    "gym FrozenLake": gymnasium_env("FrozenLake-v1"),
    "gym dict": gymnasium_env("Zoo/Menagerie-v0"),
    "gym nested": gymnasium_env("Zoo/Nest-v0"),
    "gym mixed": gymnasium_env("Zoo/Pilot-v0", wrappers=[{"time_limit": 40}]),
    "gym process": gymnasium_env("CartPole-v1", backend="process", num_workers=2),
}
SAME_START = (
    "FrozenLake-v1",
    "tensor/Lock",
    "tensor/MinAtar-Asterix",
    "tensor/MinAtar-SpaceInvaders",
)  # whatever the seed
STATE_LEAVES = (torch.Tensor, np.ndarray, int, float, str, bool, type(None))


@pytest.fixture(params=ENVIRONMENTS)
def make(request):
    """Yield a factory whose environments are closed at the end."""
    made = []

    def build():
        made.append(ENVIRONMENTS[request.param]())
        return made[-1]

    yield build
    for env in made:
        env.close()


def roll(env, actions):
    return [env.step(action) for action in actions]


def leaf_specs(space):
    return {"": space} if isinstance(space, Box) else space


def assert_matches_spec(observations, env):
    specs = leaf_specs(env.spec.observation)
    leaves = dict(tree_leaves(observations))
    assert leaves.keys() == specs.keys()
    for name, leaf in leaves.items():
        is_box = isinstance(specs[name], Box)  # else a choice, as its number
        assert leaf.shape == (env.num_envs, *(specs[name].shape if is_box else ()))
        assert leaf.dtype == (specs[name].dtype if is_box else torch.int64)


def test_the_same_seed_gives_the_same_episodes(make):
    first, second = make(), make()
    actions = random_actions(first.spec, first.num_envs, 60)
    assert_equal([first.reset(3)], [second.reset(3)])
    once, twice = roll(first, actions), roll(second, actions)
    for a, b in zip(once, twice, strict=True):
        assert_equal(a, b)
    first.reset(3)
    for a, b in zip(once, roll(first, actions), strict=True):
        assert_equal(a, b)


def test_another_seed_gives_other_episodes(make):
    env = make()
    if isinstance(env, Counting):
        pytest.skip("counting draws nothing")
    actions = random_actions(env.spec, env.num_envs, 60)
    env.reset(3)
    once = torch.stack([step.rewards for step in roll(env, actions)])
    first = [leaf.clone() for _, leaf in tree_leaves(env.reset(4))]
    second = [leaf for _, leaf in tree_leaves(env.reset(3))]
    twice = torch.stack([step.rewards for step in roll(env, actions)])
    assert torch.equal(once, twice)
    if env.spec.id not in SAME_START:
        assert any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_every_step_is_as_the_spec_says(make):
    env = make()
    assert_matches_spec(env.reset(0), env)
    for step in roll(env, random_actions(env.spec, env.num_envs, 50)):
        assert_matches_spec(step.observations, env)
        assert_matches_spec(step.final_observations, env)
        assert step.rewards.shape == (env.num_envs,)
        assert step.rewards.dtype == torch.float32
        for flag in (step.terminated, step.truncated):
            assert flag.shape == (env.num_envs,)
            assert flag.dtype == torch.bool
        assert not (step.terminated & step.truncated).any()


def test_only_ended_rows_differ_from_their_final_observation(make):
    env = make()
    env.reset(0)
    num_ended = 0
    for step in roll(env, random_actions(env.spec, env.num_envs, 120)):
        goes_on = ~(step.terminated | step.truncated)
        num_ended += int((~goes_on).sum())
        finals = dict(tree_leaves(step.final_observations))
        for name, leaf in tree_leaves(step.observations):
            assert torch.equal(leaf[goes_on], finals[name][goes_on])
    assert num_ended > 0


def test_tensors_are_never_written_again(make):
    env = make()
    kept = [env.reset(0)]
    copies = [tree_map(torch.clone, kept[0])]
    for step in roll(env, random_actions(env.spec, env.num_envs, 30)):
        kept.append(tuple(step))
        copies.append(tree_map(torch.clone, tuple(step)))
    assert_equal(kept, copies)


def test_state_continues_in_a_new_object_to_the_bit(make):
    points, further = (0, 1, 8, 33, 77), 120
    env = make()
    env.reset(11)
    actions = random_actions(env.spec, env.num_envs, points[-1] + further)
    states, steps = {}, []
    for index, action in enumerate(actions):
        if index in points:
            states[index] = env.get_state()
        steps.append(env.step(action))
    other = make()
    for point, state in states.items():
        assert all(isinstance(leaf, STATE_LEAVES) for _, leaf in tree_leaves(state))
        other.reset(999 + point)
        other.set_state(state)
        for index in range(point, point + further):
            assert_equal(steps[index], other.step(actions[index]))


def test_taking_the_state_changes_nothing(make):
    env, other = make(), make()
    env.reset(5)
    other.reset(5)
    for action in random_actions(env.spec, env.num_envs, 30):
        other.get_state()
        assert_equal(env.step(action), other.step(action))


@pytest.mark.parametrize("name", ["CartPole-v1", "LunarLander-v3", "HalfCheetah-v5", "Hopper-v5", "Ant-v5"])
def test_gymnasium_continues_in_a_new_process(name, new_process):
    kwargs = {"name": name, "num_envs": 2, "env_kwargs": {"max_episode_steps": 130}}
    env = GymnasiumEnv(**kwargs)
    env.reset(4)
    actions = random_actions(env.spec, 2, 360)
    roll(env, actions[:60])
    state = env.get_state()
    future = new_process.submit(continue_gymnasium, kwargs, state, list(actions[60:].numpy()))
    here = roll(env, actions[60:])
    assert any(step.truncated.any() or step.terminated.any() for step in here)
    for a, b in zip(here, future.result(), strict=True):
        assert_equal(a, tree_map(torch.from_numpy, b))


@pytest.fixture(scope="module")
def new_process():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor
