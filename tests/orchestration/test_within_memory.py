"""Updates that are refused memory, by the machine itself: what is begun again, what is not, and what is said."""

import json
from functools import partial

import pytest
import torch

from rl_lab.components.flow_matching import FlowMatching
from rl_lab.components.vla.vla import VLA
from rl_lab.core import LabError, Named, Optimizers, RngStreams, WorkflowContext, hook, seed_everything, tree_leaves
from rl_lab.orchestration.within_memory import WithinMemory
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.tracker import Tracker
from rl_lab.workflows.sft import SFT
from tests.components.vla.small import BLIND
from tests.orchestration.parts import Counter
from tests.orchestration.test_orchestrator import build
from tests.workflows.test_sft import SPEC, demonstrations, phase

torch.set_num_threads(1)
TOO_MANY_BYTES = 1 << 50  # more than a process can address


def take_too_much():
    torch.rand(())  # of the stream that is to be as it was
    torch.empty(TOO_MANY_BYTES, dtype=torch.uint8)


class Hungry(SFT):
    """Takes too much memory for parts larger than a fourth of a batch."""

    def _learn(self, chunks):
        if self.accumulation < 4:
            take_too_much()
        return super()._learn(chunks)


class Insatiable(SFT):
    def _learn(self, chunks):
        take_too_much()


class Late(SFT):
    """Takes too much when its parameters have changed already."""

    def _learn(self, chunks):
        super()._learn(chunks)
        take_too_much()


def make(path, kind, **options):
    seed_everything(3)
    buffer = demonstrations()
    context = WorkflowContext(
        config={"buffers": {"demonstrations": {"batch_size": 16}}},
        device=torch.device("cpu"),
        spec=SPEC,
        num_envs=4,
        components=Named("component", {"generator": FlowMatching(VLA(BLIND, "push it"), num_sampling_steps=3)}),
        controllers=Named("controller", {}),
        optimizers=Optimizers({"policy": partial(torch.optim.AdamW, lr=1e-2)}),
        buffers=Named("buffer", {"demonstrations": buffer}),
        rng=RngStreams(0),
    )
    workflow = kind(prediction_horizon=4, action_horizon=2, warmup_updates=3, **options)
    workflow.initialize(context)
    tracker = Tracker(RunDirectory.create(path.parent, "t", 0, path))
    tracker.open(100)
    return workflow, buffer, WithinMemory(workflow, context, tracker)


def updated(path, kind, **options):
    """Return the workflow after two updates, with what they reported."""
    workflow, buffer, call = make(path, kind, **options)
    return workflow, [call(workflow.update_policy, buffer.sample(), phase=phase()) for _ in range(2)]


def told(path):
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


def test_a_batch_is_split_until_it_fits_as_if_it_had_always_been(tmp_path):
    hungry, metrics = updated(tmp_path / "hungry", Hungry)
    rng = torch.get_rng_state()
    modest, expected = updated(tmp_path / "modest", SFT, accumulation=4)
    assert [event["num_parts"] for event in told(tmp_path / "hungry")] == [2, 4]
    assert told(tmp_path / "modest") == []
    assert metrics == expected
    assert torch.equal(rng, torch.get_rng_state())
    assert hungry.get_state() == modest.get_state() == {"num_updates": 2, "accumulation": 4}
    pairs = zip(tree_leaves(hungry.state_dict()), tree_leaves(modest.state_dict()), strict=True)
    assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)
    again, _, _ = make(tmp_path / "again", SFT)
    again.set_state(hungry.get_state())
    assert again.accumulation == 4
    again.set_state({"num_updates": 1})  # of an early checkpoint
    assert again.accumulation == 4


@pytest.mark.parametrize(("kind", "parts"), [(Insatiable, [2, 4, 8, 16]), (Late, [])])
def test_what_cannot_be_split_or_has_begun_is_one_line(tmp_path, kind, parts):
    with pytest.raises(LabError) as caught:
        updated(tmp_path / "run", kind)
    line = str(caught.value)
    assert line.startswith("phase 'imitate': an update ran out of memory on cpu (can't allocate memory: you tried to")
    assert line.endswith("; lower buffers.demonstrations.batch_size (now 16)")
    assert "\n" not in line
    assert [event["num_parts"] for event in told(tmp_path / "run")] == parts


class Greedy(Counter):
    @hook
    def update_policy(self, batch, *, phase):
        take_too_much()


class Faulty(Counter):
    @hook
    def update_policy(self, batch, *, phase):
        raise RuntimeError("shapes do not match")


def test_a_workflow_without_parts_ends_the_run_with_a_line(tmp_path):
    with pytest.raises(LabError, match=r"an update ran out of memory on cpu .*; lower buffers.rollout.batch_size$"):
        build(tmp_path / "run", workflow=Greedy()).run()
    assert told(tmp_path / "run")[-1]["kind"] == "failed"


def test_other_errors_are_not_taken_for_it(tmp_path):
    with pytest.raises(RuntimeError, match="shapes do not match"):
        build(tmp_path / "run", workflow=Faulty()).run()


def test_a_gpus_refusal_is_one_too(tmp_path):
    class Small(Counter):
        @hook
        def update_policy(self, batch, *, phase):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")

    with pytest.raises(
        LabError, match=r"ran out of memory on cpu \(CUDA out of memory. Tried to allocate 2.00 GiB\); lower"
    ):
        build(tmp_path / "run", workflow=Small()).run()
