"""The policy of a run, from its files alone."""

import pytest
import torch

from rl_lab.cli.running import new_job, opened
from rl_lab.config.policy import load_policy
from rl_lab.core.errors import CheckpointError
from rl_lab.tracking.checkpoint import CheckpointStore


@pytest.fixture
def job(composed, targets, tmp_path):
    job = new_job(composed("training.total_timesteps=64"), targets, tmp_path / "run", quiet=True)
    with opened(job, quiet=True) as orchestrator:
        orchestrator.run()
    return job


def test_it_acts_as_the_run_did_and_moves_no_random_stream(job, targets):
    loaded = CheckpointStore(job.run.checkpoints).load_newest()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    policy = load_policy(job.run, loaded, targets, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)
    obs = policy.env.reset(0)
    assert (policy.env.num_envs, policy.step, policy.workflow.training) == (1, 64, False)
    assert not any(weight.requires_grad for weight in policy.workflow.parameters())
    is_first = torch.ones(1, dtype=torch.bool)
    trained = job.parts.workflow.act(obs, None, is_first=is_first, explore=False, step=64)[0]
    assert torch.equal(policy.workflow.decide(obs, None, is_first)[0], trained)
    for key, weight in job.parts.workflow.state_dict().items():
        assert torch.equal(policy.workflow.state_dict()[key], weight)


def test_a_checkpoint_of_other_networks_is_refused(job, targets):
    loaded = CheckpointStore(job.run.checkpoints).load_newest()
    loaded.state["workflow"]["actor.weight"] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match=r"actor.weight"):
        load_policy(job.run, loaded, targets, torch.device("cpu"))
