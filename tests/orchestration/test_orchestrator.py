"""The loop with real parts: what it saves, how it stops, and that a restored run is the same run."""

import functools
import json
import os
import signal

import numpy as np
import pytest
import torch

from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import (
    CheckpointError,
    CollectResult,
    Counters,
    EnvironmentFault,
    LabError,
    Named,
    Optimizers,
    RngStreams,
    Update,
    WorkflowContext,
    hook,
    seed_everything,
    tree_leaves,
)
from rl_lab.environments.counting import Counting
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.orchestration.phase_scheduler import PhaseScheduler
from rl_lab.orchestration.phases import parse_phases
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking.chain_comparison import STEPS, UPDATES
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import tree_hash
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.tracker import Tracker
from tests.orchestration.parts import Counter

NUM_ENVS = 3
PHASES = [
    {"name": "warmup", "duration_steps": 24, "hooks": [{"collect": 4}, "update_policy", "refresh"]},
    {
        "name": "train",
        "duration_updates": 5,
        "hooks": [{"collect": 3}, "update_policy", {"evaluate": {"every_steps": 20}}],
    },
    {"name": "judge", "type": "eval_only", "duration_cycles": 2},
]


def build(path, *, seed=0, phases=PHASES, total=10_000, cadence=None, workflow=None, buffers=None, check_finite="rows"):
    run = (
        RunDirectory.open(path) if (path / "manifest.json").exists() else RunDirectory.create(path.parent, "t", 0, path)
    )
    seed_everything(seed)
    workflow = workflow or Counter()
    rng, counters = RngStreams(7), Counters()
    tracker = Tracker(run, [], every_steps=15, hash_chain="all")
    buffers = buffers if buffers is not None else {"rollout": RolloutBuffer()}
    context = WorkflowContext(
        config={},
        device=torch.device("cpu"),
        spec=Counting(1).spec,
        num_envs=NUM_ENVS,
        components=Named("component", {}),
        controllers=Named("controller", {}),
        optimizers=Optimizers({"policy": functools.partial(torch.optim.Adam, lr=0.1)}),
        buffers=Named("buffer", buffers),
        rng=rng,
        counters=counters,
    )
    workflow.initialize(context)
    return Orchestrator(
        workflow=workflow,
        context=context,
        scheduler=PhaseScheduler(parse_phases(phases, workflow.hooks(), list(buffers)), total, counters),
        collector=Collector(Counting(NUM_ENVS), 11, tracker.timer),
        evaluator=Evaluator(Counting(2), 3, rng),
        tracker=tracker,
        checkpoints=CheckpointStore(run.checkpoints, keep_last=1000),
        cadence=cadence or CheckpointCadence(steps=5),
        check_finite=check_finite,
    )


CHAINS = ("steps.chain", "updates.chain")


def rows(path):
    return (path / "metrics.jsonl").read_bytes()


def assert_same(a, b):
    left, right = list(tree_leaves(a)), list(tree_leaves(b))
    assert [path for path, _ in left] == [path for path, _ in right]
    for (path, x), (_, y) in zip(left, right, strict=True):
        same = torch.equal(torch.as_tensor(x), torch.as_tensor(y)) if hasattr(x, "shape") else x == y
        assert same, path


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    path = tmp_path_factory.mktemp("unbroken") / "run"
    orchestrator = build(
        path, cadence=CheckpointCadence(steps=5, minutes=1e-9)
    )  # after every action, and within collect
    orchestrator.run()
    return path, orchestrator.checkpoints


def test_the_counters_and_rows_of_a_run(unbroken):
    path, store = unbroken
    counters = store.load_newest().manifest["counters"]
    assert (counters["env_steps"], counters["updates"], counters["cycles"]) == (24 + 45, 4 + 5, 2 + 5 + 2)
    parsed = [json.loads(line) for line in rows(path).splitlines()]
    assert {row["phase"] for row in parsed} == {"warmup", "train", "judge"}
    evaluations = [row["step"] for row in parsed if "eval/return" in row]
    assert evaluations == [42, 60, 69, 69]
    links = np.fromfile(path / "steps.chain", STEPS), np.fromfile(path / "updates.chain", UPDATES)
    assert links[0]["env_steps"].tolist() == list(range(NUM_ENVS, 70, NUM_ENVS))  # one for every vector step
    assert links[1]["update"].tolist() == list(range(1, 10))
    assert links[1]["env_steps"].tolist() == [12, 12, 24, 24, 33, 42, 51, 60, 69]
    assert any("collect/return" in row and "train/loss" in row for row in parsed)


def test_a_restore_from_every_checkpoint_of_every_phase_ends_in_the_same_bits(unbroken, tmp_path):
    path, store = unbroken
    expected = store.load_newest().state
    del expected["tracker"]["offsets"]["events"]
    seen = set()
    for entry in store.entries()[:-1]:
        target = tmp_path / entry.path.name
        again = build(target, seed=99)  # another seed: everything random must come from the checkpoint
        for name in ("metrics.jsonl", "events.jsonl", *CHAINS):
            (target / name).write_bytes((path / name).read_bytes() + b'{"written": "after the checkpoint"}\n')
        again.restore(store.load(entry.path).state)
        again.run()
        final = again.checkpoints.load_newest().state
        del final["tracker"]["offsets"]["events"]  # checkpoints are noted there
        assert_same(final, expected)
        assert rows(target) == rows(path)
        assert [(target / name).read_bytes() for name in CHAINS] == [(path / name).read_bytes() for name in CHAINS]
        seen.add(entry.phase)
    assert seen == {"warmup", "train", "judge"}


def test_a_partly_collected_rollout_is_in_the_checkpoint(unbroken):
    _, store = unbroken
    partial = [e for e in store.entries() if store.load(e.path).state["scheduler"]["cursor"]["repeats_done"] > 0]
    assert partial
    state = store.load(partial[0].path).state
    assert sum(1 for key, _ in tree_leaves(state["buffers"]) if "rewards" in key) > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_checkpoints_and_leaves_and_the_resumed_run_is_the_same(number, unbroken, tmp_path):
    class Asking(Counter):
        def act(self, *args, step, **kwargs):
            if step == 36:
                os.kill(os.getpid(), number)
            return super().act(*args, step=step, **kwargs)

    path, _ = unbroken
    first = build(tmp_path / "run", workflow=Asking())
    previous = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        first.run()
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is previous
    loaded = first.checkpoints.load_newest()
    assert loaded.manifest["counters"]["env_steps"] == 39
    second = build(tmp_path / "run", seed=5)
    second.restore(loaded.state)
    second.run()
    assert rows(tmp_path / "run") == rows(path)


def test_a_second_signal_leaves_at_once(tmp_path):
    class Stubborn(Counter):
        def act(self, *args, step, **kwargs):
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
            return super().act(*args, step=step, **kwargs)

    with pytest.raises(Interrupted):
        build(tmp_path / "run", workflow=Stubborn()).run()


def test_warm_starts_take_the_weights_and_begin_anew(unbroken, tmp_path):
    _, store = unbroken
    state = store.load_newest().state
    weights = build(tmp_path / "a")
    weights.restore(state, "warm_start")
    assert torch.equal(weights.workflow.weight, state["workflow"]["weight"])
    assert weights.counters == Counters()
    assert not weights.context.optimizers["policy"].state
    both = build(tmp_path / "b")
    both.restore(state, "warm_start_optimizer")
    assert both.context.optimizers["policy"].state
    assert both.counters == Counters()


def test_a_checkpoint_of_other_networks_is_refused(unbroken, tmp_path):
    state = unbroken[1].load_newest().state
    orchestrator = build(tmp_path / "run")
    text = (
        r"the checkpoint's networks do not fit this config: weight is \[8\] there and \[3\] here; bias is only in it$"
    )
    with pytest.raises(CheckpointError, match=text):
        orchestrator.restore({**state, "workflow": {"weight": torch.zeros(8), "bias": torch.zeros(1)}})
    with pytest.raises(CheckpointError, match=r"has no optimiser 'policy' .it has: \['value'\]"):
        orchestrator.restore({**state, "optimizers": {"value": {}}})


def test_a_checkpoint_that_cannot_be_written_is_said_and_training_goes_on(tmp_path, monkeypatch):
    orchestrator = build(tmp_path / "run", cadence=CheckpointCadence(updates=3))
    save, failed = orchestrator.checkpoints.save, []

    def full_disk(*args, **kwargs):
        if not failed:
            failed.append(True)
            raise CheckpointError("disk full")
        return save(*args, **kwargs)

    monkeypatch.setattr(orchestrator.checkpoints, "save", full_disk)
    orchestrator.run()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["reason"] for e in events if e["kind"] == "checkpoint_failed"] == ["disk full"]
    assert orchestrator.counters.env_steps == 69


def test_the_last_checkpoint_must_be_written(tmp_path, monkeypatch):
    orchestrator = build(tmp_path / "run", cadence=CheckpointCadence())
    monkeypatch.setattr(orchestrator.evaluator, "best", 1e9)

    def full_disk(*args, **kwargs):
        raise CheckpointError("disk full")

    monkeypatch.setattr(orchestrator.checkpoints, "save", full_disk)
    with pytest.raises(CheckpointError, match="disk full"):
        orchestrator.run()


def test_the_best_evaluation_is_kept_with_its_score(unbroken):
    _, store = unbroken
    best = store.best()
    assert best is not None
    assert best.score == max(e.score for e in store.entries() if e.score is not None)


def test_rows_do_not_depend_on_where_a_rollout_is_cut(tmp_path):
    phases = [{"name": "gather", "duration_steps": 96, "hooks": [{"collect": 16}]}, PHASES[1]]
    written = []
    for name, cadence in (("whole", CheckpointCadence()), ("cut", CheckpointCadence(steps=7))):
        build(tmp_path / name, phases=phases, cadence=cadence).run()
        written.append(rows(tmp_path / name))
    assert written[0] == written[1]


def test_a_run_that_starts_from_another_saves_that_at_once_and_its_own_end_is_not_saved_twice(unbroken, tmp_path):
    _, store = unbroken
    state = store.load_newest().state
    fork = build(tmp_path / "fork", phases=PHASES[:1], cadence=CheckpointCadence())
    fork.evaluator.best = 1e9
    fork.restore(state, "warm_start")
    fork.run()
    first, last = fork.checkpoints.entries()
    assert first.counters["env_steps"] == 0
    assert torch.equal(fork.checkpoints.load(first.path).state["workflow"]["weight"], state["workflow"]["weight"])
    again = build(tmp_path / "fork", phases=PHASES[:1])
    again.restore(fork.checkpoints.load(last.path).state)
    again.run()
    assert [entry.serial for entry in fork.checkpoints.entries()] == [1, 2]


def test_a_warm_start_keeps_the_configured_learning_rate(unbroken, tmp_path):
    state = unbroken[1].load_newest().state
    state["optimizers"]["policy"]["param_groups"][0]["lr"] = 0.0
    orchestrator = build(tmp_path / "run")
    orchestrator.restore(state, "warm_start_optimizer")
    assert orchestrator.context.optimizers["policy"].param_groups[0]["lr"] == 0.1


def test_a_failed_run_says_why_in_its_events(tmp_path):
    class Broken(Counter):
        def act(self, *args, step, **kwargs):
            raise EnvironmentFault("the cable is loose")

    with pytest.raises(EnvironmentFault):
        build(tmp_path / "run", workflow=Broken()).run()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["reason"] for e in events if e["kind"] == "failed"] == ["the cable is loose"]


def test_a_workflow_can_collect_by_itself(tmp_path):
    class Dreaming(Counter):
        def collect_step(self, step, *, phase):
            return CollectResult(steps=2, trajectory={"rewards": torch.ones(1, 2)}, metrics={"dreams": float(step)})

    phases = [{"name": "dream", "duration_steps": 16, "hooks": [{"collect": 4}, "update_policy"]}]
    build(tmp_path / "run", workflow=Dreaming(), phases=phases).run()
    dreams = [
        row["collect/dreams"]
        for line in rows(tmp_path / "run").splitlines()
        if "collect/dreams" in (row := json.loads(line))
    ]
    assert dreams == [sum(range(0, 16, 2)) / 8]


def test_a_phase_that_can_never_update_raises(tmp_path):
    phases = [{"name": "learn", "duration_updates": 3, "hooks": ["update_policy"]}]
    with pytest.raises(
        LabError,
        match=r"phase 'learn' can never update: buffer 'rollout' is not ready, nothing collects \(size: 0\)$",
    ):
        build(tmp_path / "run", phases=phases).run()


class Judging(Counter):
    """Also looks at what it learns from, with noise of its own."""

    @hook(group="eval", is_update=False)
    def judge(self, batch, *, phase):
        assert not torch.is_grad_enabled()
        assert not self.training
        return {"seen": batch["rewards"].mean(), "noise": torch.rand(())}


def judged(path, *, every):
    judge = {"judge": {"every_steps": every}}
    phases = [{"name": "p", "duration_steps": 60, "train_ratio": 0.5, "hooks": ["collect", judge, "update_policy"]}]
    buffer = SequenceBuffer(100, 4, 3, num_envs=NUM_ENVS, seed=1, online=True)
    cadence = CheckpointCadence(steps=10**6)
    orchestrator = build(path, phases=phases, workflow=Judging(), buffers={"replay": buffer}, cadence=cadence)
    orchestrator.run()
    return orchestrator.checkpoints.load_newest().state


def test_a_hook_that_only_looks_leaves_no_trace_but_its_row(tmp_path):
    with_looks, without = judged(tmp_path / "with", every=6), judged(tmp_path / "without", every=10**6)
    keys = ("workflow", "workflow_state", "optimizers", "buffers", "collector", "rng", "counters", "evaluator")
    assert [key for key in keys if tree_hash(with_looks[key]) != tree_hash(without[key])] == []
    parsed = [json.loads(line) for line in rows(tmp_path / "with").splitlines()]
    looks = [row for row in parsed if "eval/noise" in row]
    assert [row["step"] for row in looks] == [12, 18, 24, 30, 36, 42, 48, 54, 60]  # at 6 there is no sequence yet
    assert len({row["eval/noise"] for row in looks}) == len(looks)


def test_looking_at_nothing_is_said(tmp_path):
    phases = [{"name": "p", "cycles": 1, "hooks": ["judge"]}]
    buffers = {"replay": SequenceBuffer(100, 4, 3, num_envs=NUM_ENVS)}
    with pytest.raises(LabError, match="phase 'p': judge finds nothing in buffer 'replay'"):
        build(tmp_path / "empty", phases=phases, workflow=Judging(), buffers=buffers).run()
    phases = [{"name": "p", "cycles": 1, "hooks": ["collect", "judge"]}]
    with pytest.raises(LabError, match="RolloutBuffer can be sampled, but not looked into"):
        build(tmp_path / "rollout", phases=phases, workflow=Judging()).run()


def test_an_update_can_write_back(tmp_path):
    class Returning(Counter):
        @hook
        def update_policy(self, batch, *, phase):
            return Update({"loss": 0.0}, {"priority": batch["rewards"][0]})

    class Taking(RolloutBuffer):
        taken = ()

        def write_back(self, values):
            self.taken += (values["priority"].shape,)

    buffer = Taking()
    build(tmp_path / "run", workflow=Returning(), buffers={"rollout": buffer}, phases=PHASES[:1]).run()
    assert buffer.taken == ((NUM_ENVS,),) * 2


@pytest.mark.parametrize(
    ("cadence", "count"),
    [(CheckpointCadence(updates=4), 2), (CheckpointCadence(minutes=1, now=iter(range(0, 10**6, 61)).__next__), 9)],
)
def test_checkpoints_by_updates_and_by_minutes(cadence, count, tmp_path):
    orchestrator = build(tmp_path / "run", cadence=cadence)
    orchestrator.evaluator.best = 1e9
    orchestrator.run()
    assert len(orchestrator.checkpoints.entries()) >= count
