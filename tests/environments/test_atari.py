import sys

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
import torch
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rl_lab.core import ConfigError, EnvironmentFault
from rl_lab.environments.atari import make_env
from rl_lab.environments.atari_fast import AtariFastEnv
from rl_lab.environments.exact.state import native_state, restore_native
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.wrappers.base import LifeLoss, TimeLimit
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"
REPEATABLE = {"repeat_action_probability": 0.0, "noop_max": 0}


def gymnasiums(name, max_frames, **kwargs):
    """Return the same game by gymnasium's wrappers; [4, 84, 84]."""
    env = gymnasium.make(name, frameskip=1, max_num_frames_per_episode=max_frames, disable_env_checker=True, **kwargs)
    return FrameStackObservation(AtariPreprocessing(env), 4)


@pytest.mark.parametrize(("name", "full_action_space"), [(PONG, False), (BREAKOUT, True)])
def test_every_step_equals_gymnasiums_preprocessing(name, full_action_space):
    kwargs = {"full_action_space": full_action_space, "repeat_action_probability": 0.0}
    env, reference = make_env(name, max_frames=500, **kwargs), gymnasiums(name, 500, **kwargs)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=300)
    obs, info = env.reset(seed=4)
    expected, expected_info = reference.reset(seed=4)
    num_ends = 0
    for action in actions:
        assert np.array_equal(obs, expected.transpose(1, 2, 0))
        assert info.items() <= expected_info.items()
        frames_before = info["episode_frame_number"]
        obs, reward, terminated, truncated, info = env.step(action)
        expected, expected_reward, expected_end, expected_cut, expected_info = reference.step(action)
        assert (reward, terminated, truncated) == (expected_reward, expected_end, expected_cut)
        if terminated or truncated:
            num_ends += 1
            # gymnasium repeats the last whole step where an episode ends within one; ours shows how it ended
            screen = cv2.resize(env.unwrapped.ale.getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_AREA)
            is_whole = info["episode_frame_number"] - frames_before == 4
            assert is_whole or np.array_equal(obs[..., 3], screen)
            (obs, info), (expected, expected_info) = env.reset(), reference.reset()
    assert num_ends >= 2


def test_options_of_the_picture():
    env = GymnasiumEnv(PONG, 1, env_kwargs={"grayscale": False, "frame_stack": 2, "size": (60, 72), "frame_skip": 3})
    assert (env.spec.observation.shape, env.spec.action_repeat) == ((6, 60, 72), 3)
    assert env.spec.max_episode_steps == 36_000
    assert env.spec.exact_resume
    env.close()
    bare = GymnasiumEnv(PONG, 1, env_kwargs={"preprocessing": False, "full_action_space": True})
    assert (bare.spec.observation.shape, bare.spec.action_repeat, bare.spec.action.n) == ((3, 210, 160), 4, 18)
    bare.close()


def test_life_loss_ends_episodes_and_the_game_goes_on():
    env = make_env(BREAKOUT, life_loss=True)
    env.reset(seed=0)
    lives, num_frames = [], []
    for action in np.random.default_rng(1).integers(env.action_space.n, size=2_000):
        _, _, terminated, truncated, info = env.step(action)
        assert not truncated
        if terminated:
            obs, after = env.reset()
            assert all(np.array_equal(obs[..., 0], obs[..., index]) for index in range(4))
            lives.append((info["lives"], after["lives"]))
            num_frames.append(after["episode_frame_number"] - info["episode_frame_number"])
        if lives and lives[-1] == (0, 5):
            break
    assert lives == [(4, 4), (3, 3), (2, 2), (1, 1), (0, 5)]
    assert num_frames[:4] == [4] * 4  # one no-op of four frames
    assert num_frames[4] < 0  # a new game


@pytest.mark.parametrize("preprocessing", [True, False])
@pytest.mark.parametrize("is_limit_outside", [True, False])
def test_a_time_limit_begins_a_new_game_though_lives_are_left(preprocessing, is_limit_outside):
    """Only a lost life goes on with its game: after any other end the reset is a real one, in both orders of layers."""
    kwargs = {"preprocessing": preprocessing, "repeat_action_probability": 0.0}
    if is_limit_outside:
        env = TimeLimit(make_env(BREAKOUT, life_loss=True, **kwargs), max_episode_steps=10)
    else:
        env = LifeLoss(TimeLimit(make_env(BREAKOUT, **kwargs), max_episode_steps=10))
    env.reset(seed=0)
    for _ in range(3):
        outcomes = [env.step(0) for _ in range(10)]
        assert [cut for _, _, _, cut, _ in outcomes] == [False] * 9 + [True]
        assert outcomes[-1][4]["episode_frame_number"] >= 40
        assert env.reset()[1]["episode_frame_number"] <= 30  # the no-ops of a new game


def test_pictures_of_the_life_before_are_not_seen_in_the_next_one():
    env = make_env(BREAKOUT, life_loss=True, frame_stack=2, grayscale=False)
    plain = make_env(BREAKOUT, frame_stack=2, grayscale=False)
    assert env.observation_space == plain.observation_space
    starts = [each.reset(seed=3)[0] for each in (env, plain)]
    assert np.array_equal(*starts)
    is_lost = False
    while not is_lost:
        (obs, reward, is_lost, _, info), theirs = env.step(1), plain.step(1)
        assert np.array_equal(obs, theirs[0])
        assert (reward, info) == (theirs[1], theirs[4])
    obs, theirs = env.reset()[0], plain.step(0)[0]
    assert np.array_equal(obs[..., 3:], theirs[..., 3:])  # the newest: one step of doing nothing later
    assert np.array_equal(obs[..., :3], obs[..., 3:])
    assert not np.array_equal(theirs[..., :3], theirs[..., 3:])


def test_rewards_are_clipped_when_asked():
    plain, clipped = make_env("ALE/MsPacman-v5"), make_env("ALE/MsPacman-v5", clip_reward=True)
    plain.reset(seed=3)
    clipped.reset(seed=3)
    pairs = [(plain.step(action)[1], clipped.step(action)[1]) for action in [1, 2, 3, 4] * 30]
    assert max(reward for reward, _ in pairs) >= 10
    assert all(np.sign(reward) == sign for reward, sign in pairs)


@pytest.mark.parametrize("preprocessing", [True, False])
def test_sticky_actions_repeat_the_frame_before(preprocessing):
    env = make_env(PONG, preprocessing=preprocessing, repeat_action_probability=0.25)
    bare = AtariEnv("pong", frameskip=1, repeat_action_probability=0.0)
    env.reset(seed=2)
    bare.reset(seed=2)
    draws = np.random.Generator(np.random.PCG64())
    draws.bit_generator.state = bare.np_random.bit_generator.state
    for _ in range(draws.integers(1, 31) if preprocessing else 0):
        bare.step(0)
    held, num_repeats = 0, 0
    for action in np.random.default_rng(0).integers(6, size=60):
        env.step(action)
        for _ in range(4):  # by the definition of Machado et al., frame by frame
            is_repeated = draws.random() < 0.25
            held = held if is_repeated else action
            num_repeats += is_repeated
            bare.step(held)
        assert np.array_equal(env.unwrapped.ale.getScreenRGB(), bare.ale.getScreenRGB())
    assert 35 < num_repeats < 85  # 60 of 240 expected, 3.7 standard deviations


@pytest.mark.parametrize("kwargs", [{"max_frames": 300}, {"life_loss": True}, {"preprocessing": False}])
def test_state_goes_on_to_the_bit_with_sticky_actions(kwargs):
    env, other = (make_env(BREAKOUT, repeat_action_probability=0.5, **kwargs) for _ in range(2))
    actions = np.random.default_rng(0).integers(4, size=200)

    def roll(game, chosen):
        outcomes = []
        for action in chosen:
            obs, *rest = game.step(action)
            outcomes.append((obs.tobytes(), rest))
            if rest[1] or rest[2]:
                obs, info = game.reset()
                outcomes.append((obs.tobytes(), info))
        return outcomes

    env.reset(seed=1)
    num_ends = 0
    for start in range(0, 200, 20):  # many points: a lost action shows only where the next frame repeats it
        state = native_state(env)
        expected = roll(env, actions[start : start + 20])
        num_ends += len(expected) - 20
        restore_native(other, state)
        assert roll(other, actions[start : start + 20]) == expected
    assert num_ends > 0 or "preprocessing" in kwargs


@pytest.mark.parametrize("backend", ["sync", "process"])
def test_vectors_go_on_to_the_bit(backend):
    env, other = GymnasiumEnv(PONG, 2, backend=backend), GymnasiumEnv(PONG, 2)
    env.reset(1)
    other.reset(2)
    for index, action in enumerate(random_actions(env.spec, 2, 60)):
        if index % 6 == 0:
            other.set_state(env.get_state())
        assert_equal(env.step(action), other.step(action))
    env.close()
    other.close()


def test_fast_sees_the_same_as_the_exact_family():
    options = {**REPEATABLE, "max_frames": 600}
    fast, exact = AtariFastEnv(BREAKOUT, 2, env_kwargs=options, num_threads=1), make_env(BREAKOUT, **options)
    assert fast.spec.observation.shape == (4, 84, 84)
    assert (fast.spec.max_episode_steps, fast.spec.action_repeat, fast.spec.exact_resume) == (150, 4, False)
    seen, (obs, _) = fast.reset(0), exact.reset(seed=0)
    num_ends = 0
    for action in np.random.default_rng(0).integers(4, size=330):
        assert np.array_equal(seen[0], obs.transpose(2, 0, 1))
        assert torch.equal(seen[0], seen[1])
        step = fast.step(torch.tensor([action, action]))
        obs, reward, terminated, truncated, _ = exact.step(action)
        assert (step.rewards[0], step.terminated[0], step.truncated[0]) == (reward, terminated, truncated)
        seen = step.observations
        if terminated or truncated:
            num_ends += 1  # the emulators do not draw the last frames of an episode
            assert np.array_equal(step.final_observations[0, :3], obs.transpose(2, 0, 1)[:3])
            obs, _ = exact.reset()
    assert num_ends >= 2
    fast.close()


def test_fast_life_loss_keeps_its_final_observation():
    env = AtariFastEnv(BREAKOUT, 3, env_kwargs={"life_loss": True}, num_threads=1)
    before, num_lost = env.reset(0), 0
    for action in random_actions(env.spec, 3, 200):
        step = env.step(action)
        for row in torch.nonzero(step.terminated).flatten().tolist():
            num_lost += 1
            # what the step led to still holds the pictures before it; what comes next is only the newest one
            assert torch.equal(step.final_observations[row, :3], before[row, 1:])
            assert torch.equal(step.observations[row], step.observations[row, 3:].expand(4, -1, -1))
        goes_on = ~step.terminated
        assert torch.equal(step.observations[goes_on], step.final_observations[goes_on])
        before = step.observations
    assert num_lost > 5


def test_fast_is_seeded_but_not_resumable():
    first, second = (AtariFastEnv(PONG, 2, num_threads=1) for _ in range(2))
    assert_equal([first.reset(3)], [second.reset(3)])
    steps = []
    for action in random_actions(first.spec, 2, 40):
        steps.append(first.step(action))
        assert_equal(steps[-1], second.step(action))
    assert first.get_state() == {"id": PONG, "num_envs": 2, "steps": 40}
    with pytest.raises(EnvironmentFault, match=r"^environment 'ALE/Pong-v5' cannot be restored: .*environment=atari"):
        second.set_state(first.get_state())
    with pytest.raises(EnvironmentFault, match="has 6 actions, got"):
        first.step(torch.tensor([0, 6]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: GymnasiumEnv("ALE/Pang-v5", 1), "unknown environment.name 'ALE/Pang-v5'; did you mean 'ALE/Pong-v5'?"),
        (lambda: AtariFastEnv("ALE/Pang-v5", 1), "unknown environment.name 'ALE/Pang-v5'; did you mean 'ALE/Pong-v5'?"),
        (
            lambda: make_env(PONG, repeat_action_probability=2),
            "environment.env_kwargs.repeat_action_probability is 2, not in",
        ),
        (lambda: make_env(PONG, frame_stack=0), "environment.env_kwargs.frame_stack must be 1 or more, got 0"),
        (
            lambda: AtariFastEnv(PONG, 1, env_kwargs={"life": 1}),
            "unknown environment.env_kwargs 'life'; did you mean 'life_loss'?",
        ),
        (
            lambda: AtariFastEnv(PONG, 1, env_kwargs={"noop_max": -1}),
            "environment.env_kwargs.noop_max must be 0 or more",
        ),
        (lambda: AtariFastEnv(PONG, 0), "environment.num_envs and num_threads must be 1 or more, got 0, None"),
    ],
)
def test_bad_input_is_one_line(make, text):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("package", ["ale_py", "cv2"])
def test_a_missing_package_names_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"needs a package that is not installed: pip install 'rl-lab\[atari\]'"):
        make_env(PONG)
