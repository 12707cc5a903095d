import pytest
import torch

from rl_lab.environments.multigoal import MultiGoal
from tests.environments.rollouts import assert_equal


def at(*positions):
    """Return an environment whose copies stand at these positions."""
    env = MultiGoal(len(positions))
    env.reset(0)
    state = env.get_state()
    state["dynamics"]["position"] = torch.tensor(positions)
    env.set_state(state)
    return env


@pytest.mark.parametrize(
    ("position", "action", "landing", "reward", "terminated"),
    [
        # by hand: - 30 |action|^2 - |landing - nearest goal|^2, + 10 within 1 of it
        ((0.0, 0.0), (1.0, 0.0), (1.0, 0.0), -30.0 - 16.0, False),
        ((0.0, 0.0), (0.0, -0.5), (0.0, -0.5), -7.5 - 4.5**2, False),
        ((0.0, 0.0), (3.0, -3.0), (1.0, -1.0), -60.0 - (16.0 + 1.0), False),  # the velocity is cut to [-1, 1]
        ((6.5, 6.5), (1.0, 1.0), (7.0, 7.0), -60.0 - (4.0 + 49.0), False),  # the world ends at 7
        ((3.5, 0.25), (0.75, 0.0), (4.25, 0.25), 10.0 - 30.0 * 0.5625 - (0.5625 + 0.0625), True),
        ((-3.5, 0.0), (-0.5, 0.0), (-4.0, 0.0), -7.5 - 1.0, False),  # at a distance of exactly 1 it is not there yet
        ((0.0, -5.5), (0.0, 0.0), (0.0, -5.5), 10.0 - 0.25, True),
        ((0.0, 5.0), (0.0, 0.0), (0.0, 5.0), 10.0, True),
    ],
)
def test_rewards_by_hand(position, action, landing, reward, terminated):
    step = at(position).step(torch.tensor([action]))
    assert step.final_observations[0].tolist() == pytest.approx(landing)
    assert step.rewards.item() == pytest.approx(reward)
    assert step.terminated.tolist() == [terminated]
    assert step.truncated.tolist() == [False]


def test_an_episode_is_cut_after_30_steps():
    env = MultiGoal(2)
    env.reset(3)
    steps = [env.step(torch.zeros(2, 2)) for _ in range(31)]
    assert [step.truncated.tolist() for step in steps[28:]] == [[False] * 2, [True] * 2, [False] * 2]
    assert not any(step.terminated.any() for step in steps)
    assert torch.equal(steps[28].observations, steps[29].final_observations)
    assert not torch.equal(steps[29].observations, steps[29].final_observations)


def test_starts_are_normal_with_a_deviation_of_a_tenth():
    starts = MultiGoal(20_000).reset(1)
    assert starts.mean(0).abs().max() < 0.003  # four standard errors
    assert starts.std(0).sub(0.1).abs().max() < 0.002
    assert torch.corrcoef(starts.T)[0, 1].abs() < 0.03


def test_state_continues_to_the_bit():
    env, other = MultiGoal(5), MultiGoal(5)
    env.reset(1)
    other.reset(2)
    actions = torch.randn(120, 5, 2, generator=torch.Generator().manual_seed(0))
    for action in actions[:40]:
        env.step(action)
    other.set_state(env.get_state())
    for action in actions[40:]:
        assert_equal(env.step(action), other.step(action))
