"""The toys, against numbers computed another way."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from rl_lab.core import Box, ConfigError, EnvironmentFault, MultiDiscrete
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.counting import ENV, EPISODE, LAST_ACTION, STEP, Counting
from rl_lab.environments.identity import Identity
from rl_lab.environments.lock import Lock
from rl_lab.environments.memory import Memory
from rl_lab.environments.pendulum import Pendulum

torch.set_num_threads(1)


def test_cartpole_moves_as_gymnasium_does():
    theirs = gymnasium.make("CartPole-v1").unwrapped
    env = CartPole(32)
    obs = env.reset(0)
    actions = torch.randint(2, (200, 32), generator=torch.Generator().manual_seed(1))
    num_ended = 0
    for action in actions:
        step = env.step(action)
        for i in range(32):
            theirs.reset()
            theirs.state = obs[i].double().numpy()
            expected, reward, terminated, _, _ = theirs.step(int(action[i]))
            np.testing.assert_allclose(step.final_observations[i], expected, atol=1e-5)
            assert (step.rewards[i], step.terminated[i]) == (reward, terminated)
        obs = step.observations
        num_ended += int(step.terminated.sum())
    assert num_ended > 100
    assert obs.abs().max() < 3


def test_cartpole_starts_within_five_hundredths():
    obs = CartPole(4000).reset(0)
    assert obs.abs().max() <= 0.05
    assert obs.mean().abs() < 2e-3
    assert abs(obs.std() - 0.1 / math.sqrt(12)) < 1e-3


def test_cartpole_is_cut_at_its_limit():
    env = CartPole(3, max_episode_steps=4)
    env.reset(0)
    steps = [env.step(torch.tensor([t % 2] * 3)) for t in range(8)]
    assert [bool(step.truncated.all()) for step in steps] == [False, False, False, True] * 2
    assert CartPole(1).spec.max_episode_steps == 500


def test_pendulum_moves_as_gymnasium_does():
    theirs = gymnasium.make("Pendulum-v1").unwrapped
    theirs.reset(seed=0)
    env = Pendulum(32)
    obs = env.reset(0)
    actions = 2 * torch.randn(250, 32, 1, generator=torch.Generator().manual_seed(1))
    for t, action in enumerate(actions):
        step = env.step(action)
        for i in range(32):
            angle = math.atan2(obs[i, 1], obs[i, 0])
            theirs.state = np.array([angle, float(obs[i, 2])])
            expected, reward, _, _, _ = theirs.step(action[i].numpy())
            np.testing.assert_allclose(step.final_observations[i], expected, atol=1e-5)
            np.testing.assert_allclose(step.rewards[i], reward, atol=1e-5)
        assert not step.terminated.any()
        assert bool(step.truncated.all()) == (t == 199)
        obs = step.observations


@pytest.mark.parametrize("num_envs", [1, 5])
def test_counting_is_continuous(num_envs):
    env = Counting(num_envs, min_length=2, max_length=4)
    obs = env.reset(0)
    episode, step_in_episode = [0] * num_envs, [0] * num_envs
    actions = torch.randint(4, (60, num_envs), generator=torch.Generator().manual_seed(0))
    for action in actions:
        step = env.step(action)
        for i in range(num_envs):
            length = 2 + (i + episode[i]) % 3
            step_in_episode[i] += 1
            row = step.final_observations[i].tolist()
            assert row == [i, episode[i], step_in_episode[i], int(action[i])]
            assert step.rewards[i] == step_in_episode[i]
            is_over = step_in_episode[i] == length
            is_even = (i + episode[i]) % 2 == 0
            assert (bool(step.terminated[i]), bool(step.truncated[i])) == (is_over and is_even, is_over and not is_even)
            if is_over:
                episode[i], step_in_episode[i] = episode[i] + 1, 0
                assert step.observations[i].tolist() == [i, episode[i], 0, -1]
        obs = step.observations
    assert (ENV, EPISODE, STEP, LAST_ACTION) == (0, 1, 2, 3)
    assert obs[:, EPISODE].min() > 10


def test_memory_pays_only_for_the_cue_at_the_question():
    env = Memory(64, num_cues=3, length=4)
    obs = env.reset(0)
    for _ in range(3):
        cue = obs[:, :3].argmax(-1)
        assert torch.equal(obs[:, :3].sum(-1), torch.ones(64))
        for t in range(4):
            assert torch.equal(obs[:, 3], torch.full((64,), float(t == 3)))
            assert t == 0 or not obs[:, :3].any()
            answer = torch.where(torch.arange(64) % 2 == 0, cue, (cue + 1) % 3)
            step = env.step(answer)
            expected = (torch.arange(64) % 2 == 0).float() * float(t == 3)
            assert torch.equal(step.rewards, expected)
            assert bool(step.terminated.all()) == (t == 3)
            obs = step.observations


def test_the_lock_opens_to_its_combination_alone():
    env = Lock(2, turns=5, choices=3)
    obs, reached = env.reset(0), 0
    right = [turn * turn * 7 % 11 % 3 for turn in range(5)]
    assert len(set(right)) > 1
    for turn, choice in enumerate(right):  # the first copy knows it, the second chooses 0 for ever
        assert obs.argmax(-1).tolist() == [turn, reached]
        step = env.step(torch.tensor([choice, 0]))
        reached = reached + 1 if right[reached] == 0 else 0
        assert step.rewards.tolist() == [float(turn == 4), 0.0]
        assert step.terminated.tolist() == [turn == 4, False]
        obs = step.observations
    assert step.final_observations[0].argmax() == 5
    assert obs[0].argmax() == 0


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_identity_pays_for_the_target(kind):
    sizes = (4,) if kind == "discrete" else (2, 3)
    env = Identity(256, kind=kind, sizes=sizes)
    obs = env.reset(0)
    targets = torch.stack([part.argmax(-1) for part in obs.split(sizes, -1)], -1)
    assert torch.equal(obs.sum(-1), torch.full((256,), float(len(sizes))))
    right = env.step(targets.squeeze(-1))
    assert torch.equal(right.rewards, torch.ones(256))
    targets = torch.stack([part.argmax(-1) for part in right.observations.split(sizes, -1)], -1)
    targets[:, 0] = (targets[:, 0] + 1) % sizes[0]
    assert torch.equal(env.step(targets.squeeze(-1)).rewards, torch.full((256,), 1 - 1 / len(sizes)))


def test_identity_continuous_pays_by_distance():
    env = Identity(100, kind="continuous", sizes=(1, 1))
    obs = env.reset(0)
    assert obs.abs().max() <= 1
    step = env.step(obs + torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(step.rewards, torch.full((100,), 1 - 0.125))


def test_identity_mixed_pays_for_choices_and_numbers():
    env = Identity(100, kind="mixed", sizes=(3, 2))
    targets, numbers = env.reset(0).split((5, 2), -1)
    choices = torch.stack([part.argmax(-1) for part in targets.split((3, 2), -1)], -1)
    assert env.spec.action == {"choices": MultiDiscrete((3, 2)), "numbers": Box((2,), low=-1.0, high=1.0)}
    choices[:, 1] = 1 - choices[:, 1]
    step = env.step({"choices": choices, "numbers": numbers + torch.tensor([0.5, 0.0])})
    torch.testing.assert_close(step.rewards, torch.full((100,), 0.5 * (0.5 + 1 - 0.125)))


def test_identity_counts_and_punishes_forbidden_choices():
    env = Identity(512, sizes=(6,), masked=True)
    obs = env.reset(0)
    target, mask = obs["observation"].argmax(-1), obs["action_mask"]
    assert mask.gather(1, target[:, None]).all()
    assert 0.3 < (~mask).float().mean() < 0.5  # half of five wrong choices in six
    step = env.step(torch.zeros(512, dtype=torch.int64))
    is_forbidden = ~mask[:, 0]
    assert torch.equal(env.forbidden, is_forbidden.long())
    assert torch.equal(step.rewards, torch.where(is_forbidden, -1.0, (target == 0).float()))
    env.step(step.observations["observation"].argmax(-1))
    assert torch.equal(env.forbidden, is_forbidden.long())
    mixed = Identity(512, kind="mixed", sizes=(6,), masked=True)
    is_forbidden = ~mixed.reset(0)["action_mask"][:, 0]
    step = mixed.step({"choices": torch.zeros(512, 1, dtype=torch.int64), "numbers": torch.zeros(512, 1)})
    assert torch.equal(step.rewards == -1.0, is_forbidden)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Identity(1, kind="square"),
            "environment.kind 'square'.*choices: continuous, discrete, mixed, multi_discrete",
        ),
        (lambda: Identity(1, kind="continuous", masked=True), "environment.masked"),
        (lambda: Identity(1, sizes=(2, 3)), "environment.sizes"),
        (lambda: Memory(1, length=1), "environment.length"),
        (lambda: Lock(1, choices=1), "environment.turns must be 1 or more and choices 2 or more, got 12 and 1"),
        (lambda: Counting(1, min_length=9), "environment.min_length"),
        (lambda: CartPole(0), "environment.num_envs"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_foreign_state_is_refused():
    cartpole, pendulum, wider = CartPole(2), Pendulum(2), CartPole(3)
    cartpole.reset(0)
    with pytest.raises(EnvironmentFault, match=r"tensor/Pendulum.*tensor/CartPole"):
        pendulum.set_state(cartpole.get_state())
    with pytest.raises(EnvironmentFault, match="3 copies, the state has 2"):
        wider.set_state(cartpole.get_state())
