"""Random actions: uniform, allowed, of any space; and runs that learn nothing."""

from contextlib import closing

import pytest
import torch

from rl_lab.config.build import build_evaluator
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, EnvSpec, MultiDiscrete, RngStreams
from rl_lab.environments.identity import Identity
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.workflows.random_policy import RandomPolicy
from tests.workflows.off_policy import parts_of, resumes_exactly, start

torch.set_num_threads(1)
COUNT = 6000


def drawn(spec, obs=None, explore=True):
    workflow = start(RandomPolicy(), spec, dict, names=())
    obs = torch.zeros(COUNT, 3) if obs is None else obs
    actions, extras, carry = workflow.act(obs, None, is_first=torch.ones(COUNT).bool(), explore=explore, step=0)
    assert (extras, carry) == ({}, None)
    return actions


@pytest.mark.parametrize("explore", [True, False])
def test_numbers_are_uniform_within_their_bounds(explore):
    actions = drawn(EnvSpec("numbers", Box((3,)), Box((2,), low=-1.0, high=3.0)), explore=explore)
    torch.testing.assert_close(actions.mean(0), torch.ones(2), atol=0.06, rtol=0)
    torch.testing.assert_close(actions.var(0), torch.full((2,), 16 / 12), atol=0.06, rtol=0)
    assert bool((actions >= -1.0).all() and (actions <= 3.0).all())


def test_choices_are_uniform_and_allowed():
    spec = EnvSpec("choice", {"x": Box((3,)), ACTION_MASK: Box((4,), dtype=torch.bool)}, Discrete(4))
    mask = torch.tensor([True, False, True, True]).expand(COUNT, -1)
    shares = torch.bincount(drawn(spec, {"x": torch.zeros(COUNT, 3), ACTION_MASK: mask}), minlength=4) / COUNT
    torch.testing.assert_close(shares, torch.tensor([1 / 3, 0.0, 1 / 3, 1 / 3]), atol=0.03, rtol=0)
    several = drawn(EnvSpec("choices", Box((3,)), MultiDiscrete((2, 3))))
    assert [int(several[:, part].max()) for part in (0, 1)] == [1, 2]


def test_its_score_is_that_of_guessing():
    env = Identity(8, sizes=(4,), max_episode_steps=50)
    workflow = start(RandomPolicy(), env.spec, dict, names=())
    found = Evaluator(env, 40, RngStreams(0)).evaluate(workflow, step=0)
    assert found["return"] / found["length"] == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize(
    "experiment", ["random_cartpole", "planet_cartpole", "tdmpc2_cartpole", "world_models_cartpole", "dreamer_cartpole"]
)
def test_runs_that_ask_for_it_tell_their_gain_over_random_actions(experiment):
    """By how much more is returned than what random actions have in CartPole, about 22."""
    parts = parts_of([f"+experiment={experiment}", "training.eval_gain=true"])
    judge = build_evaluator(parts, 20, explore=False)
    with closing(parts.env), closing(judge.env):
        found = judge.evaluate(parts.workflow, step=10**9)
        other = start(RandomPolicy(), parts.env.spec, dict, names=(), num_envs=judge.env.num_envs)
        expected = Evaluator(judge.env, 20, RngStreams(5)).evaluate(other, step=0)["return"]
    assert found["return"] - found["return_gain"] == pytest.approx(expected, abs=10.0)  # means of 20 are 22 +- 3


def test_numbers_without_bounds_are_refused():
    with pytest.raises(ConfigError, match="RandomPolicy needs finite action bounds"):
        drawn(EnvSpec("x", Box((3,)), Box((2,))))


def test_a_run_resumes_exactly(tmp_path):
    assert resumes_exactly(["+experiment=random_cartpole"], tmp_path, stop_at=13)
