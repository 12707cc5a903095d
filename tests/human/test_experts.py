"""Scripted experts do their task, from any state, and say so where they cannot."""

import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.experts import InsertionExpert

torch.set_num_threads(1)


def success_rate(env, expert, episodes, seed=1):
    """Return the share of the first `episodes` that end in success."""
    torch.manual_seed(seed)
    obs, ended, won = env.reset(seed), 0, 0
    is_first = torch.ones(env.num_envs, dtype=torch.bool)
    while ended < episodes:
        actions, _, _ = expert.act(obs, None, is_first=is_first, explore=True, step=0)
        step = env.step(actions)
        obs = step.observations
        ended += int((step.terminated | step.truncated).sum())
        won += int(step.terminated.sum())
    env.close()
    return won / ended


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_insertion_expert_inserts(noise):
    assert success_rate(GymnasiumEnv("cell/Insertion-v0", 20), InsertionExpert(noise), 100) >= 0.95


def state(way, ahead=(0.0, 0.0, 0.0), velocity=(0.0, 0.0, 0.0)):
    return torch.tensor([[0.0, 0.0, 0.5, *velocity, *ahead, *way]])


@pytest.mark.parametrize(
    ("obs", "expected"),
    [
        (state((0.05, -0.02, -0.3)), (0.5, -0.2, -1.0)),  # towards the mouth, down to hovering
        (state((0.005, 0.0, -0.1)), (0.05, 0.0, -1.0)),  # over it: down
        (state((0.005, 0.0, -0.1), velocity=(0.9, 0.0, 0.0)), (0.05, 0.0, 0.0)),  # still on its way: wait
        (state((0.5, 0.0, 0.05)), (0.0, 0.0, 1.0)),  # deep beside the block: up first
        (state((0.05, 0.0, -0.1), ahead=(0.05, 0.0, 0.0)), (0.0, 0.0, 0.0)),  # the target is already there
    ],
)
def test_the_insertion_expert_follows_its_phases(obs, expected):
    assert InsertionExpert().plan(obs)[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_what_remains_falls_to_nothing():
    expert = InsertionExpert()
    left = [expert.remaining(state(way)).item() for way in ((0.3, 0.4, -1.0), (0.0, 0.0, -0.1), (0.0, 0.0, 0.25))]
    assert left == pytest.approx([0.5 + 1.25, 0.35, 0.0])
    assert expert.done_at > 0.25 - 0.2  # 2 cm deep is done


def test_a_vector_or_a_dict_of_its_parts_is_read():
    whole = state((0.1, 0.2, -0.3))
    parts = {"state": whole[:, :9], "objects": whole[:, 9:], "cam_high": torch.zeros(1, 3, 4, 4, dtype=torch.uint8)}
    expert = InsertionExpert()
    assert torch.equal(expert.numbers(parts), whole)
    with pytest.raises(ConfigError, match=r"reads `state` and `objects`, the environment shows \['state'\]"):
        expert.numbers({"state": whole[:, :9]})
    with pytest.raises(ConfigError, match="reads 12 numbers, the environment shows 9"):
        expert.numbers(whole[:, :9])
    with pytest.raises(ConfigError, match="noise of InsertionExpert must be 0 or more, got -1"):
        InsertionExpert(-1)
