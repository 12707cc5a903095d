"""All generations of Dreamer as packaged, only smaller: whatever actions they have, wherever their runs are stopped."""

import pytest
import torch

from rl_lab.tracking.run_directory import RunDirectory
from tests.workflows.off_policy import resumes_exactly, run_tiny

torch.set_num_threads(1)
RUN = ("experiment.name=x", "training.total_timesteps=128", "experiment.compile=eager")
CHOICES = ("+environment=tensor_cartpole",)
SEVERAL = ("+environment=identity", "environment.kind=multi_discrete")
BOTH = ("+environment=identity_mixed",)


@pytest.mark.parametrize("environment", [CHOICES, SEVERAL, BOTH], ids=["choices", "several", "both"])
@pytest.mark.parametrize("preset", ["dreamer_v1", "dreamer_v2_discrete", "dreamer_v3_2023", "dreamer_v3"])
def test_actions_with_choices(preset, environment, tmp_path):
    state = run_tiny([f"+preset={preset}", *environment, *RUN], RunDirectory.create(tmp_path, "run", 1))
    assert state["counters"]["env_steps"] == 128
    assert state["counters"]["updates"] >= 4
    weights = {name: tensor for name, tensor in state["workflow"].items() if torch.is_floating_point(tensor)}
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    outputs = [name for name in weights if name.startswith("actor.logits")]
    assert outputs
    assert all(weights[name].any() for name in outputs)  # biases begin at 0


@pytest.mark.parametrize(
    ("preset", "environment", "stop_at", "phase"),
    [
        ("dreamer_v2", "tensor_pendulum", 18, "pretrain"),
        ("dreamer_v2", "tensor_pendulum", 31, "train"),
        ("dreamer_v2_discrete", "tensor_cartpole", 31, "train"),
        ("dreamer_v3_2023", "tensor_pendulum", 45, "train"),
        ("dreamer_v3_2023", "tensor_cartpole", 45, "train"),
    ],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(preset, environment, stop_at, phase, tmp_path):
    given = [f"+preset={preset}", f"+environment={environment}", *RUN]
    if preset.startswith("dreamer_v2"):
        given.append("algorithm.target_update_every=3")  # updates: a slow critic that is copied on both sides
    state = run_tiny(given, RunDirectory.create(tmp_path / "alone", "run", 1), stop_at=stop_at)
    assert state["counters"]["updates"] > 0
    schedule = state["scheduler"]
    assert schedule["phases"][schedule["cursor"]["phase"]] == phase
    assert schedule["cursor"]["updates"] > 0
    assert resumes_exactly(given, tmp_path, stop_at=stop_at)
