"""Updates that a GPU refuses memory, for its process may have a little only: smaller parts, and the same result."""

import json
from functools import partial

import pytest
import torch

from rl_lab.components.mlp import MLP
from rl_lab.core import LabError, Named, Optimizers, RngStreams, WorkflowContext, seed_everything
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.orchestration.within_memory import WithinMemory
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.tracker import Tracker
from rl_lab.workflows.behavior_cloning import BehaviorCloning
from tests.workflows.off_policy import random_batch
from tests.workflows.test_behavior_cloning import NUMBERS, PHASE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MIB = 1 << 20
ROWS, WIDTH = 32_768, 2_048  # what a layer puts out takes 256 MiB; two of them, with their gradients, about 1000
LITTLE = 640  # MiB


@pytest.fixture
def limit():
    """Return a function that leaves this process so much memory beyond what it has."""

    def leave(mib):
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + mib * MIB) / whole)

    yield leave
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def make(path, execution, **options):
    seed_everything(3)
    device = torch.device("cuda")
    context = WorkflowContext(
        config={"buffers": {"demonstrations": {"batch_size": ROWS}}},
        device=device,
        spec=NUMBERS,
        num_envs=4,
        components=Named("component", {"actor": MLP(3, (WIDTH, WIDTH), "relu")}),
        controllers=Named("controller", {}),
        optimizers=Optimizers({"policy": partial(torch.optim.SGD, lr=1e-3)}),
        buffers=Named("buffer", {}),
        rng=RngStreams(0),
        static=StaticSteps(execution),
    )
    workflow = BehaviorCloning(numbers="squared", normalize_observations=True, **options)
    workflow.initialize(context)
    tracker = Tracker(RunDirectory.create(path.parent, "t", 0, path))
    tracker.open(100)
    batch = {key: leaf.to(device) for key, leaf in random_batch(NUMBERS, ROWS).items()}
    return workflow, batch, WithinMemory(workflow, context, tracker)


def after_updates(path, execution, limit=None, **options):
    """Return the workflow after five updates (the last of them captured), its losses and what was told."""
    workflow, batch, call = make(path, execution, **options)
    if limit is not None:
        limit(LITTLE)
        torch.cuda.reset_peak_memory_stats()
    losses = [float(call(workflow.update_policy, batch, phase=PHASE)["loss"]) for _ in range(5)]
    peak = torch.cuda.max_memory_allocated() / MIB
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    return workflow, losses, peak, events


@pytest.mark.parametrize("execution", ["eager", "captured"])
def test_a_batch_that_does_not_fit_is_taken_in_parts(tmp_path, execution, limit):
    parted, losses, peak, events = after_updates(tmp_path / "little", execution, limit)
    parts = [event["num_parts"] for event in events if event["kind"] == "less_memory"]
    assert parts == [2 << number for number in range(len(parts))] != []
    assert parted.accumulation == parts[-1]
    assert peak < LITTLE + 100  # and the weights
    torch.cuda.set_per_process_memory_fraction(1.0)
    same, expected, *_ = after_updates(tmp_path / "always", execution, accumulation=parts[-1])
    assert losses == expected
    assert all(torch.equal(one, other) for one, other in zip(parted.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(one, other) for one, other in zip(parted.buffers(), same.buffers(), strict=True))
    whole, expected, wide, none = after_updates(tmp_path / "whole", execution)
    assert none == []
    assert wide > peak + 200
    assert losses == pytest.approx(expected, rel=1e-3)
    for one, other in zip(parted.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_where_not_even_weights_fit_the_run_ends_with_a_line(tmp_path, limit):
    workflow, batch, call = make(tmp_path / "run", "eager")
    limit(0)
    with pytest.raises(LabError, match=r"an update ran out of memory on cuda \(.*\); lower the sizes of") as caught:
        call(workflow.update_policy, batch, phase=PHASE)
    assert "\n" not in str(caught.value)
