"""Critics shared out among tasks, and what does not go with tasks."""

from types import SimpleNamespace

import pytest
import torch

from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.components.perception import Perception
from rl_lab.components.task_values import TaskValues, reject_tasks, shared_out
from rl_lab.core import Box, ConfigError, EnvSpec

SPEC = EnvSpec("made-up", Box((3,)), Box((2,), low=-1.0, high=1.0))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_parts_are_the_members_of_the_whole(count):
    whole, x = EnsembleMLP(5, (8, 4), num_members=6, layer_norm=True), torch.randn(7, 5)
    expected = whole(x)
    parts = shared_out(whole, count)
    assert [part.num_members for part in parts] == [6 // count] * count
    assert torch.equal(torch.cat([part(x) for part in parts]), expected)


def test_the_lowest_of_each_task():
    torch.manual_seed(0)
    critic = TaskValues(EnsembleMLP(5, (8,), num_members=4), SPEC.action, 2)
    features, actions = torch.randn(3, 3), torch.rand(3, 6, 2) * 2 - 1
    critic.requires_grad_(False)
    found = critic(features, actions)
    assert found.shape == (2, 3, 6)
    for task in range(2):
        for row in range(3):
            for k in range(6):
                values = critic[task](features[row : row + 1], actions[row : row + 1, k])  # [2, 1]
                assert float(found[task, row, k]) == pytest.approx(min(values.flatten().tolist()), rel=1e-5)


def rejected(tasks=(), task=None, buffers=None, **components):
    """Ask for a phase of `task`, on the buffer `replay`."""
    phases = [{"name": "train", "buffer": "replay", **({} if task is None else {"task": task})}]
    context = SimpleNamespace(config={"training": {"phases": phases}, "buffers": buffers or {}})
    reject_tasks(context, Perception(SPEC, components), tasks)


UNION = {"replay": {"parts": {"demos": {"into": {"n_step": 3}}, "own": {"n_step": 1}}}}


@pytest.mark.parametrize(("tasks", "task"), [((), "a"), (("a", "b"), "a"), (("a", "b"), None), (("a",), None)])
@pytest.mark.parametrize(
    ("buffers", "key"),
    [({"replay": {"n_step": 3}}, "buffers.replay.n_step"), (UNION, "buffers.replay.parts.demos.into.n_step")],
)
def test_sums_of_rewards_are_not_those_of_a_task(tasks, task, buffers, key):
    with pytest.raises(ConfigError) as error:
        rejected(tasks, task, buffers)
    assert str(error.value) == f"{key}: must be 1, because the reward of a task is an info of one step"


def test_other_rewards_and_other_buffers_may_be_summed():
    rejected((), None, UNION)
    rejected((), "a", {"replay": {"n_step": 1}, "other": {"n_step": 3}})


def test_what_tasks_would_share_is_refused():
    with pytest.raises(ConfigError, match=r"^components\.encoder: several algorithm\.tasks would share it"):
        rejected(("a", "b"), encoder=MLP(3, (4,)))
    rejected(("a", "b"), encoder=MLP(3, ()))  # nothing in it learns
    rejected(("a",), encoder=MLP(3, (4,)))
    rejected(("a", "b"))


def test_critics_must_come_out_even():
    with pytest.raises(ConfigError, match=r"components\.critic\.num_members: 3 for 2 algorithm\.tasks"):
        TaskValues(EnsembleMLP(5, (8,), num_members=3), SPEC.action, 2)
    with pytest.raises(ConfigError, match=r"components\.critic: needs an EnsembleMLP"):
        TaskValues(MLP(5, (8,)), SPEC.action, 1)


def test_a_task_has_one_name():
    with pytest.raises(ConfigError, match=r"algorithm\.tasks: \['a', 'b', 'a'\] names one of them twice"):
        rejected(("a", "b", "a"))
