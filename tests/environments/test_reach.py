import numpy as np
import pytest
import torch

from rl_lab.buffers.hindsight import HindsightBuffer
from rl_lab.core import ConfigError, EnvironmentFault, tree_map
from rl_lab.environments.reach import Reach
from rl_lab.ops.goal_rewards import SparseDistance
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)


def at(position, goal, **options):
    """Return an environment of one copy that stands at a position and wants to be at a goal."""
    env = Reach(1, dims=len(position), **options)
    env.reset(0)
    state = env.get_state()
    state["dynamics"] |= {"position": torch.tensor([position]), "goal": torch.tensor([goal])}
    env.set_state(state)
    return env


def rollout(env, actions, seed=0):
    """Return what a collector would hand to a buffer, [T, N, ...]."""
    obs, is_first, rows = env.reset(seed), torch.ones(env.num_envs, dtype=torch.bool), []
    for action in actions:
        step = env.step(action)
        ends = {"terminated": step.terminated, "truncated": step.truncated, "is_first": is_first}
        outcome = {"rewards": step.rewards, "final_observations": step.final_observations, **ends}
        rows.append({"observations": obs, "actions": action, **outcome})
        obs, is_first = step.observations, step.terminated | step.truncated
    return tree_map(lambda *leaves: torch.stack(leaves), *rows)


@pytest.mark.parametrize(
    ("position", "action", "goal", "landing", "reward"),
    [
        # by hand: landing = position + 0.1 * action, cut to [-1, 1]; 0 within 0.05 of the goal, else -1
        ((0.0, 0.0), (1.0, -0.5), (0.5, 0.5), (0.1, -0.05), -1.0),
        ((0.0, 0.0), (1.0, -0.5), (0.1, -0.05), (0.1, -0.05), 0.0),
        ((0.0, 0.0), (3.0, -9.0), (0.1, -0.1), (0.1, -0.1), 0.0),  # the velocity is cut to [-1, 1]
        ((0.95, 0.0), (1.0, 0.0), (1.0, 0.03), (1.0, 0.0), 0.0),  # the world ends at 1
        ((0.25, 0.25), (0.0, 0.0), (0.28, 0.20), (0.25, 0.25), -1.0),  # 0.058 away
        ((0.25, 0.25), (0.0, 0.0), (0.28, 0.22), (0.25, 0.25), 0.0),  # 0.042 away
        ((0.25, 0.25), (0.0, 0.0), (0.25, 0.31), (0.25, 0.25), -1.0),
        ((-0.5, 0.5, 0.0), (0.0, 0.0, 0.5), (-0.5, 0.5, 0.08), (-0.5, 0.5, 0.05), 0.0),
    ],
)
def test_steps_by_hand(position, action, goal, landing, reward):
    step = at(position, goal).step(torch.tensor([action]))
    assert step.final_observations["achieved_goal"][0].tolist() == pytest.approx(landing)
    assert torch.equal(step.final_observations["observation"], step.final_observations["achieved_goal"])
    assert step.final_observations["desired_goal"][0].tolist() == pytest.approx(goal)
    assert step.rewards.tolist() == [reward]
    assert step.infos["is_success"].tolist() == [float(reward == 0.0)]
    assert not step.terminated.any()


def test_exactly_at_the_threshold_counts_as_reached():
    env = at((0.5, 0.0), (0.25, 0.0), threshold=0.25)  # all of them exact in binary
    assert env.step(torch.zeros(1, 2)).rewards.item() == 0.0
    assert at((0.5, 0.0), (0.2499, 0.0), threshold=0.25).step(torch.zeros(1, 2)).rewards.item() == -1.0


@pytest.mark.parametrize("dims", [2, 3])
def test_rewards_are_those_of_sparse_distance_to_the_bit(dims):
    env, reward = Reach(512, dims=dims, threshold=0.2), SparseDistance(0.2)
    env.reset(3)
    found = []
    for action in random_actions(env.spec, 512, 60):
        step = env.step(action)
        final = step.final_observations
        assert_equal(step.rewards, reward(final["achieved_goal"], final["desired_goal"]))
        found.append(step.rewards)
    assert set(torch.cat(found).tolist()) == {0.0, -1.0}


def test_an_episode_is_cut_after_50_steps_and_gets_another_goal():
    env = Reach(3)
    goals = [env.reset(1)["desired_goal"]]
    for index in range(120):
        step = env.step(torch.zeros(3, 3))
        assert step.truncated.tolist() == [index in (49, 99)] * 3
        assert torch.equal(step.final_observations["desired_goal"], goals[-1])
        if index in (49, 99):
            goals.append(step.observations["desired_goal"])
    assert not torch.isclose(goals[0], goals[1]).any()


def test_starts_and_goals_are_uniform_and_independent():
    obs = Reach(20_000, dims=2).reset(1)
    draws = torch.cat((obs["achieved_goal"], obs["desired_goal"]), -1)
    assert draws.abs().max() <= 1.0
    assert draws.abs().amax(0).min() > 0.999
    assert draws.mean(0).abs().max() < 0.017  # four standard errors of a deviation of 1 / sqrt(3)
    assert draws.std(0).sub(3**-0.5).abs().max() < 0.008
    assert (torch.corrcoef(draws.T) - torch.eye(4)).abs().max() < 0.03


def test_the_straight_way_succeeds_and_chance_does_not():
    env = Reach(2000)
    obs = env.reset(5)
    for _ in range(50):
        step = env.step((obs["desired_goal"] - obs["achieved_goal"]) / 0.1)
        obs = step.observations
    assert step.infos["is_success"].mean() == 1.0
    touched = torch.zeros(2000)
    for _ in range(50):
        touched = touched.maximum(env.step(env._uniform(3, low=-1.0)).infos["is_success"])
    assert touched.mean() < 0.01


def test_hindsight_gives_the_rewards_of_the_environment():
    env = Reach(8)
    trajectory = rollout(env, torch.rand(200, 8, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1)
    buffer = HindsightBuffer(2000, 1024, SparseDistance(0.05), num_envs=8, spec=env.spec)
    buffer.add(trajectory)
    batch = buffer.sample()
    achieved, desired = (batch["next_observations"][key].double().numpy() for key in ("achieved_goal", "desired_goal"))
    distances = np.sqrt(((achieved - desired) ** 2).sum(-1))
    assert np.array_equal(batch["rewards"].numpy(), -(distances > 0.05).astype(np.float32))
    assert trajectory["rewards"].eq(0.0).float().mean() < 0.005
    assert batch["rewards"].eq(0.0).float().mean() > 0.05
    assert batch["discounts"].unique().tolist() == pytest.approx([0.99])


def test_state_continues_to_the_bit_and_only_in_as_many_dimensions():
    env, other = Reach(5), Reach(5)
    env.reset(1)
    other.reset(2)
    actions = random_actions(env.spec, 5, 160)
    for action in actions[:40]:
        env.step(action)
    other.set_state(env.get_state())
    for action in actions[40:]:
        assert_equal(env.step(action), other.step(action))
    with pytest.raises(EnvironmentFault, match=r"'tensor/Reach-2d' cannot go on from a state of 'tensor/Reach-3d'"):
        Reach(5, dims=2).set_state(env.get_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": 0}, r"^environment.dims must be 1 or more, got 0$"),
        ({"threshold": 0.0}, r"^environment.threshold must be more than 0, got 0.0$"),
        ({"speed": -1.0}, r"^environment.speed must be more than 0, got -1.0$"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        Reach(1, **options)
