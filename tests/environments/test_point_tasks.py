"""Several tasks in one environment: who moves where, by hand; what is filled up means nothing; lengths of their own."""

import math

import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments.point_tasks import PointTasks

torch.set_num_threads(1)


def at(task, position, goal, **options):
    """Return an environment of one copy that stands somewhere."""
    env = PointTasks(1, **options)
    env.reset(0)
    state = env.get_state()
    places = {"position": torch.tensor([position]), "goal": torch.tensor([goal])}
    state["dynamics"] |= {"task": torch.tensor([task]), **places}
    env.set_state(state)
    return env


@pytest.mark.parametrize(
    ("task", "position", "action", "landing"),
    [
        # by hand: position + 0.1 * action in the first task + 1 dimensions, less in the second task, cut to [-1, 1]
        (0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.1, 0.0, 0.0)),
        (1, (0.0, 0.5, 0.0), (1.0, -0.5, 1.0), (-0.1, 0.55, 0.0)),
        (2, (0.95, 0.0, 0.2), (1.0, -3.0, 0.0), (1.0, -0.1, 0.2)),
    ],
)
def test_a_step_by_hand(task, position, action, landing):
    step = at(task, position, (0.0, 0.0, 0.0)).step(torch.tensor([action]))
    torch.testing.assert_close(step.observations["state"], torch.tensor([[*landing, 0.0, 0.0, 0.0]]))
    assert step.observations["task"].tolist() == [task]
    assert float(step.rewards) == pytest.approx(math.exp(-2.0 * math.dist(landing, (0.0, 0.0, 0.0))))


def test_numbers_that_a_task_does_not_use_mean_nothing():
    envs = [PointTasks(64), PointTasks(64)]
    seen = [env.reset(3) for env in envs]
    for _ in range(50):
        actions = torch.rand(64, 3) * 2.0 - 1.0
        unused = torch.arange(3) > seen[0]["task"][:, None]
        given = (actions, actions.masked_fill(unused, 9.0))
        seen = [env.step(action).observations for env, action in zip(envs, given, strict=True)]
        assert torch.equal(seen[0]["state"], seen[1]["state"])
        filled = torch.cat([unused := torch.arange(3) > seen[0]["task"][:, None], unused], 1)
        assert not bool(seen[0]["state"][filled].any())


def test_episodes_of_each_task_have_their_own_length():
    env, lengths, running = PointTasks(200, episode_steps=(3, 5, 4)), {}, torch.zeros(200, dtype=torch.int64)
    task = env.reset(0)["task"]
    for _ in range(30):
        step = env.step(torch.zeros(200, 3))
        running = running + 1
        assert torch.equal(step.final_observations["task"], task)
        for number, length in zip(task[step.truncated].tolist(), running[step.truncated].tolist(), strict=True):
            lengths.setdefault(number, set()).add(length)
        running, task = running * ~step.truncated, step.observations["task"]
        assert not bool(step.terminated.any())
    assert lengths == {0: {3}, 1: {5}, 2: {4}}
    assert env.spec.max_episode_steps == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": ()}, r"environment\.dims must be one or more numbers, each 1 or more, got \[\]"),
        ({"dims": (1, 0)}, r"environment\.dims must be one or more numbers, each 1 or more, got \[1, 0\]"),
        ({"dims": (2,)}, r"environment\.episode_steps must be 1 numbers \(a task each\), each 1 or more, got \[20, "),
        ({"episode_steps": (1, 0, 1)}, r"environment\.episode_steps must be 3 numbers .* got \[1, 0, 1\]"),
    ],
)
def test_wrong_sizes_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        PointTasks(2, **options)
