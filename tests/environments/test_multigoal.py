import pytest
import torch

from rl_lab.environments.multigoal import MultiGoal
from tests.environments.rollouts import assert_equal


def at(*positions, **options):
    """Return an environment whose copies stand at these positions."""
    env = MultiGoal(len(positions), **options)
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


def test_tasks_have_rewards_of_their_own():
    env = at((0.0, 3.5), (0.0, 0.0), tasks={"north": ["north"], "poles": ["north", "south"]})
    step = env.step(torch.tensor([[0.0, 1.0], [0.0, -0.5]]))
    # by hand, as above, but the nearest goal is one of the task's
    assert step.infos["north"].tolist() == pytest.approx([10.0 - 30.0 - 0.25, -7.5 - 5.5**2])
    assert step.infos["poles"].tolist() == pytest.approx([10.0 - 30.0 - 0.25, -7.5 - 4.5**2])
    assert step.rewards.tolist() == pytest.approx([10.0 - 30.0 - 0.25, -7.5 - 4.5**2])


def test_goals_are_reported_where_asked_for():
    places = ((4.5, 0.0), (-4.5, 0.0), (0.0, 4.5), (0.0, -4.5), (0.0, 0.0))
    step = at(*places, report_goals=True).step(torch.zeros(5, 2))
    assert list(step.infos) == ["at_east", "at_west", "at_north", "at_south"]
    assert torch.equal(torch.stack(list(step.infos.values()), -1), torch.eye(5)[:, :4])
    assert not at(*places).step(torch.zeros(5, 2)).infos


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
