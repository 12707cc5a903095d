"""The state of running episodes, layer by layer: every number of what follows is the same, infos included."""

import json
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.core import EnvironmentFault
from rl_lab.environments.exact.adapter import plain, unplain
from rl_lab.environments.exact.state import (
    Stateful,
    has_native_state,
    is_replayable,
    layers,
    native_state,
    restore_native,
)
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.foreign import BadOutcome
from rl_lab.environments.wrappers.wrapping import build_wrappers
from rl_lab.tracking.state_codec import decode, encode
from tests.environments.ramps import Bystander, Ramp
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)
CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
TOYS = ("Blackjack-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4")
MUJOCO = tuple(
    f"{name}-v5"
    for name in (
        *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
        *("Pusher", "Reacher", "Swimmer", "Walker2d"),
    )
)
MINIGRID = tuple(
    f"MiniGrid-{name}"
    for name in (
        *("BlockedUnlockPickup-v0", "LavaCrossingS9N1-v0", "DistShift1-v0", "DoorKey-5x5-v0", "Empty-Random-5x5-v0"),
        *("Dynamic-Obstacles-5x5-v0", "Fetch-5x5-N2-v0", "FourRooms-v0", "GoToDoor-5x5-v0", "GoToObject-6x6-N2-v0"),
        *("KeyCorridorS3R1-v0", "LavaGapS5-v0", "LockedRoom-v0", "MemoryS7-v0", "MultiRoom-N2-S4-v0"),
        *("ObstructedMaze-1Dlhb-v0", "ObstructedMaze-Full-v0", "ObstructedMaze-Full-v1", "Playground-v0"),
        *("PutNear-6x6-N2-v0", "RedBlueDoors-6x6-v0", "Unlock-v0", "UnlockPickup-v0"),
    )
)


def make(name, *entries, **kwargs):
    if name.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    if name.startswith("ALE"):
        gymnasium.register_envs(pytest.importorskip("ale_py"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of ids that have a newer version
        env = gymnasium.make(name, disable_env_checker=True, **kwargs)
    for wrapper in build_wrappers(entries):
        env = wrapper(env)
    return env


def stored(state):
    """Return the state as it comes out of a checkpoint."""
    tensors, structure = encode(state)
    return decode(json.loads(json.dumps(structure)), tensors)


def assert_same(a, b):
    """Assert that two values have the same types and bits."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for part, other in zip(a, b, strict=True):
            assert_same(part, other)
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    else:
        assert a == b


def run_into_episode(env, steps):
    env.reset(seed=1)
    env.action_space.seed(2)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


def assert_continues(env, other, steps):
    """Assert that both do the same for so many steps, and return how many episodes ended."""
    num_ended = 0
    for _ in range(steps):
        action = env.action_space.sample()
        outcome = env.step(action)
        assert_same(outcome, other.step(action))
        if outcome[2] or outcome[3]:
            num_ended += 1
            assert_same(env.reset(), other.reset())
    return num_ended


def check_native(make_env, before, further):
    env, other = make_env(), make_env()
    run_into_episode(env, before)
    run_into_episode(other, 3)  # a used one, whose remains must not shine through
    restore_native(other, stored(native_state(env)))
    num_ended = assert_continues(env, other, further)
    env.close()
    other.close()
    return num_ended


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_control(name):
    assert check_native(lambda: make(name, max_episode_steps=70), 90, 200) > 1


@pytest.mark.parametrize("name", TOYS)
def test_toy_text(name):
    assert check_native(lambda: make(name, max_episode_steps=70), 90, 200) > 1


def test_toy_text_with_its_options():
    check_native(lambda: make("Taxi-v4", rainy_probability=0.8, fickle_passenger=True, fickle_probability=1.0), 90, 300)
    check_native(lambda: make("Blackjack-v1", natural=True), 90, 100)


def test_a_lake_that_was_drawn_comes_back():
    env = make("FrozenLake-v1", map_name=None, is_slippery=False)
    other = make("FrozenLake-v1", map_name=None, is_slippery=False)
    assert not np.array_equal(env.unwrapped.desc, other.unwrapped.desc)
    run_into_episode(env, 10)
    restore_native(other, stored(native_state(env)))
    assert np.array_equal(env.unwrapped.desc, other.unwrapped.desc)
    assert_continues(env, other, 100)


@pytest.mark.parametrize("name", MUJOCO)
def test_mujoco(name):
    assert check_native(lambda: make(name, max_episode_steps=30), 45, 80) > 1


def test_mujoco_needs_the_positions_that_the_last_step_left():
    env, other = make("Ant-v5"), make("Ant-v5")
    run_into_episode(env, 20)
    state = native_state(env)
    restore_native(other, state)
    zeros = np.zeros(8, np.float32)
    other.unwrapped.data.xpos[:] = 0.0
    expected, found = env.step(zeros), other.step(zeros)
    assert_same(expected[0], found[0])
    assert expected[1] != found[1]


def test_mujocos_whole_buffer_is_kept():
    env = make("Humanoid-v5")
    run_into_episode(env, 5)
    state = native_state(env)["layers"][-1]["state"]
    fields = dict(entry.split(":") for entry in state["fields"].split())
    assert {"qpos", "qvel", "qacc_warmstart", "xpos", "xipos", "cinert", "cvel", "cfrc_ext"} <= fields.keys()
    kept = sum(value.nbytes for value in state.values() if isinstance(value, np.ndarray))
    buffer = env.unwrapped.data.nbuffer
    assert buffer - 64 * len(fields) < kept <= buffer  # each begins at a multiple of 64 bytes
    assert not any(name.startswith("efc_") for name in fields)


def test_a_model_that_remembers_elsewhere_is_replayed():
    mujoco = pytest.importorskip("mujoco")
    env = make("HalfCheetah-v5")
    assert has_native_state(env)
    env.unwrapped.model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP
    assert not has_native_state(env)


@pytest.mark.parametrize("obs_type", ["ram", "rgb"])
def test_atari(obs_type):
    def breakout():
        return make("ALE/Breakout-v5", "life_loss", {"time_limit": 40}, obs_type=obs_type, frameskip=(2, 6))

    assert check_native(breakout, 65, 80) > 1


def test_what_goes_on_behind_a_reset_is_not_replayed():
    assert is_replayable(make("CartPole-v1", *STACK[2:4]))
    assert not is_replayable(make("ALE/Breakout-v5", {"time_limit": 40}))  # the emulator has a random stream of its own
    assert not is_replayable(Bystander(make("ALE/Breakout-v5", "life_loss")))
    env = GymnasiumEnv("ALE/Breakout-v5", 1, env_kwargs={"preprocessing": False}, wrappers=[Bystander])
    assert not env.spec.exact_resume


def test_a_lost_life_is_remembered():
    def breakout():
        return make("ALE/Breakout-v5", "life_loss", obs_type="ram", repeat_action_probability=0.0)

    env, other = breakout(), breakout()
    env.reset(seed=0)
    while not env.step(1)[2]:
        pass
    restore_native(other, stored(native_state(env)))
    assert_same(env.reset(), other.reset())
    assert env.unwrapped.ale.lives() == 4


def test_a_foreign_emulator_state_is_one_line():
    pytest.importorskip("ale_py")
    env = GymnasiumEnv("ALE/Pong-v5", 1)
    env.reset(0)
    state = env.get_state()
    emulator = state["members"][0]["native"]["layers"][-1]["state"]
    emulator["emulator"] = emulator["emulator"][:100]
    with pytest.raises(EnvironmentFault, match=r"'ALE/Pong-v5' \(copy 0") as caught:
        env.set_state(state)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MINIGRID)
def test_minigrid(name):
    check_native(lambda: make(name), 45, 60)


def test_minigrid_knows_what_is_carried_and_what_is_in_a_box():
    from minigrid.core.world_object import Ball, Box, Door, Key

    env, other = make("MiniGrid-Empty-8x8-v0"), make("MiniGrid-Empty-8x8-v0")
    for each in (env, other):
        each.reset(seed=0)
    base = env.unwrapped
    base.put_obj(Box("red", Key("blue")), 2, 1)
    base.put_obj(Door("blue", is_locked=True), 3, 1)
    base.carrying = Ball("grey")
    base.carrying.cur_pos = np.array([-1, -1])
    restore_native(other, stored(native_state(env)))
    actions = base.actions
    wanted = [actions.toggle, actions.drop, actions.pickup, actions.right, actions.drop, actions.left, actions.pickup]
    for action in [*wanted, actions.forward, actions.toggle, actions.forward, actions.drop]:
        assert_same(env.step(action), other.step(action))
    assert base.grid.get(3, 1).is_open  # by the key that was in the box
    assert tuple(base.agent_pos) == tuple(other.unwrapped.agent_pos) == (3, 1)


STACK = [
    *("rescale_actions", {"action_noise": 0.1}, {"sticky_actions": 0.3}, {"action_repeat": 2}, "clip_actions"),
    *({"observation_noise": 0.05}, {"observation_delay": 3}, {"frame_stack": 2}, {"reward_noise": 0.1}),
    *({"clip_reward": [-8, 0]}, {"time_limit": 37}, "episode_statistics"),
]


def test_a_stack_of_wrappers_comes_back():
    assert check_native(lambda: make("Pendulum-v1", *STACK), 50, 150) > 3


def test_dict_observations_wait_their_turn():
    def taxi():
        return make("FrozenLake-v1", {"observation_delay": 2}, {"sticky_actions": 0.5}, "episode_statistics")

    assert check_native(taxi, 30, 60) > 3


@pytest.mark.parametrize("is_known", [True, False])
def test_by_state_or_by_replay_wrappers_are_exact(is_known):
    def vector():
        return GymnasiumEnv("Pendulum-v1", 2, wrappers=STACK if is_known else [*STACK, Bystander])

    env, other = vector(), vector()
    env.reset(3)
    actions = random_actions(env.spec, 2, 120)
    for action in actions[:51]:
        env.step(action)
    state = stored(env.get_state())
    assert ("native" in state["members"][0]) == is_known
    other.reset(9)
    other.set_state(state)
    for action in actions[51:]:
        assert_equal(env.step(action), other.step(action))


def test_state_and_replay_do_not_depend_on_each_other():
    env, other = (GymnasiumEnv("Pendulum-v1", 2, wrappers=wrappers) for wrappers in (STACK, [*STACK, Bystander]))
    assert_equal(env.reset(3), other.reset(3))
    for action in random_actions(env.spec, 2, 80):
        assert_equal(env.step(action), other.step(action))


class Forgetful(CartPoleEnv):
    """A subclass that remembers more than its base."""


class Mine(Ramp, Stateful):
    """A user's own environment that gives its state."""

    action_space = spaces.Discrete(2)

    def get_state(self):
        return {"steps": self.steps}

    def set_state(self, state):
        self.steps = state["steps"]


def test_only_known_types_are_trusted():
    assert has_native_state(make("CartPole-v1"))
    assert native_state(Forgetful()) is None
    assert not has_native_state(Ramp())
    assert not has_native_state(Bystander(make("CartPole-v1")))
    (sticky,) = build_wrappers([{"sticky_actions": 0.1}])
    assert not has_native_state(type("Mine", (sticky.func,), {})(make("CartPole-v1")))
    check_native(lambda: Mine(length=5), 7, 20)


def test_a_state_of_other_layers_is_refused():
    env, other = make("Pendulum-v1"), make("Pendulum-v1", {"time_limit": 7})
    run_into_episode(env, 3)
    with pytest.raises(BadOutcome, match="cannot be restored: it has the layers .*wrappers.base.TimeLimit"):
        restore_native(other, native_state(env))
    hopper, walker = make("Hopper-v5"), make("Hopper-v5", frame_skip=4)
    run_into_episode(hopper, 3)
    state = native_state(hopper)
    state["layers"][-1]["state"]["fields"] += " more:1"
    with pytest.raises(BadOutcome, match="another model or of another version of MuJoCo"):
        restore_native(walker, state)


def test_layers_are_named_outermost_first():
    names = [type(layer).__name__ for layer in layers(make("CartPole-v1", {"frame_stack": 2}))]
    assert names == ["FrameStack", "TimeLimit", "OrderEnforcing", "CartPoleEnv"]


def test_a_walker_is_exact_whatever_it_did_before():
    """The stock one is not: its world remembers earlier episodes."""
    for trial in range(3):
        env, other = (GymnasiumEnv("BipedalWalker-v3", 2, wrappers=[{"time_limit": 60}]) for _ in range(2))
        env.reset(trial)
        actions = random_actions(env.spec, 2, 260, seed=trial)
        for action in actions[:160]:
            env.step(action)
        other.set_state(stored(env.get_state()))
        for action in actions[160:]:
            assert_equal(env.step(action), other.step(action))


def test_a_walker_begins_as_gymnasiums_does():
    env, theirs = GymnasiumEnv("BipedalWalker-v3", 1), gymnasium.make("BipedalWalker-v3")
    seed = int(np.random.SeedSequence(5).generate_state(1)[0]) >> 1
    assert env.reset(5)[0].tolist() == theirs.reset(seed=seed)[0].tolist()
    for action in random_actions(env.spec, 1, 60):
        expected = theirs.step(action[0].clamp(-1, 1).numpy())
        assert env.step(action).final_observations[0].tolist() == expected[0].tolist()
        if expected[2]:
            break


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.floats(width=32).map(np.float32)
)
VALUES = st.recursive(
    st.one_of(SCALARS, st.lists(st.integers(-5, 5), max_size=3).map(lambda values: np.array(values, np.int32))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["scalar", "tuple", "dict", "a"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(VALUES)
def test_plain_values_come_back_as_they_were(value):
    assert_same(unplain(stored(plain(value))), value)
