"""Losses that stop being numbers: where a run ends, what it says, what it leaves, and that it happens again."""

import functools
import json
import math
import signal

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.core import EnvironmentFault, LabError, NotFiniteError, hook, set_global_rng_state
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.tracking.checkpoint import CheckpointStore
from tests.orchestration.parts import Counter
from tests.orchestration.test_orchestrator import NUM_ENVS, build

POISONED_UPDATE = 7
PHASES = [{"name": "learn", "duration_updates": 20, "hooks": [{"collect": 2}, "update_policy"]}]


class Poisoned(Counter):
    """Its value loss is NaN from a certain update on, and its weights are NaN after that."""

    def initialize(self, context):
        super().initialize(context)
        self.seen = []

    @hook
    def update_policy(self, batch, *, phase):
        self.seen.append(batch)
        metrics = super().update_policy(batch, phase=phase)
        poison = math.nan if len(self.calls) >= POISONED_UPDATE else 1.0
        with torch.no_grad():
            self.weight.mul_(poison)
        return {"count": 1.0, "total": metrics["loss"] * poison, "value_loss": torch.rand(()) * poison}


def replay():
    return {"replay": ReplayBuffer(1_000, batch_size=5, min_size=6, num_envs=NUM_ENVS, seed=1)}


def poisoned(path, **options):
    """Run until it fails; return the orchestrator, the line and the dump."""
    made = {"workflow": Poisoned(), "phases": PHASES, "buffers": replay(), "cadence": CheckpointCadence(updates=4)}
    options = made | options
    orchestrator = build(path, **options)
    with pytest.raises(LabError) as caught:
        orchestrator.run()
    assert "\n" not in str(caught.value)
    (dump,) = (path / "crash").glob("0*")
    return orchestrator, str(caught.value), CheckpointStore.load(dump)


def assert_the_newest_checkpoint_is_good(store):
    loaded = store.load_newest()
    assert loaded.manifest["counters"]["updates"] < POISONED_UPDATE
    assert all(torch.isfinite(tensor).all() for tensor in loaded.state["workflow"].values())
    return loaded


@pytest.mark.parametrize(("cadence", "noticed"), [(CheckpointCadence(updates=5), 8), (CheckpointCadence(steps=18), 8)])
def test_the_run_ends_at_the_next_row_or_checkpoint_with_all_that_is_needed(cadence, noticed, tmp_path):
    path = tmp_path / "run"
    orchestrator, line, dump = poisoned(path, cadence=cadence)  # rows are written every 15 steps, that is 2.5 updates
    loaded = assert_the_newest_checkpoint_is_good(orchestrator.checkpoints)
    term = "train/value_loss is nan, train/total is nan"
    where = f"after update {noticed} (env step {noticed * 6})"
    assert line == f"{term} {where}; last good checkpoint: {loaded.path}; dump: {dump.path}"
    events = [json.loads(row) for row in (path / "events.jsonl").read_text().splitlines()]
    assert [event["reason"] for event in events if event["kind"] == "failed"] == [line]
    assert "NaN" not in (path / "metrics.jsonl").read_text()
    state = dump.state
    assert (state["term"], state["hook"], state["phase"]) == (term, "update_policy", "learn")
    assert (state["checkpoint"], state["counters"]) == (loaded.path.name, orchestrator.counters.get_state())
    assert math.isnan(state["metrics"]["train/total"])
    assert math.isfinite(state["metrics"]["train/count"])
    assert state["before"] is None
    for key, values in orchestrator.workflow.seen[-1].items():
        assert torch.equal(torch.as_tensor(state["batch"][key]), torch.as_tensor(values)), key


def test_a_resumed_run_fails_again_in_the_same_way(tmp_path):
    first, line, dump = poisoned(tmp_path / "run")
    options = {"workflow": Poisoned(), "phases": PHASES, "buffers": replay(), "cadence": CheckpointCadence(updates=4)}
    again = build(tmp_path / "run", seed=9, **options)
    again.restore(first.checkpoints.load_newest().state)
    with pytest.raises(LabError) as caught:
        again.run()
    (second,) = (tmp_path / "run" / "crash").glob("0*")
    assert str(caught.value) == line.replace(str(dump.path), str(second))
    after = CheckpointStore.load(second).state
    assert torch.equal(after["batch"]["rewards"], dump.state["batch"]["rewards"])
    assert torch.equal(after["rng"]["torch"], dump.state["rng"]["torch"])


def test_checking_every_update_finds_the_first_one_and_what_it_began_with(tmp_path):
    orchestrator, line, dump = poisoned(tmp_path / "run", check_finite="every_update", cadence=CheckpointCadence())
    assert line.startswith(f"train/value_loss is nan, train/total is nan after update {POISONED_UPDATE} (env step 42);")
    assert "; no checkpoint was saved before; dump: " in line
    assert dump.manifest["counters"]["updates"] == POISONED_UPDATE
    before = dump.state["before"]
    again = build(tmp_path / "again", workflow=Poisoned(), phases=PHASES, buffers=replay())
    again.workflow.load_state_dict(before["workflow"])
    again.workflow.set_state(before["workflow_state"])
    again.restore({**again.get_state(), **before}, "warm_start_optimizer")
    set_global_rng_state(before["rng"])
    assert torch.isfinite(again.workflow.weight).all()
    metrics = again.workflow.update_policy(dump.state["batch"], phase=again.scheduler.current_phase())
    assert math.isnan(metrics["value_loss"])
    expected = orchestrator.workflow.calls
    assert again.workflow.calls[:-1] == expected[:-1]
    assert torch.equal(torch.get_rng_state(), dump.state["rng"]["torch"])


def test_an_update_from_a_rollout_is_always_checked_and_its_rollout_is_in_the_dump(tmp_path):
    orchestrator, line, dump = poisoned(tmp_path / "run", buffers=None, cadence=CheckpointCadence(steps=5))
    assert f"after update {POISONED_UPDATE} (env step 42);" in line
    assert dump.state["batch"]["rewards"].shape == (2, NUM_ENVS)
    assert_the_newest_checkpoint_is_good(orchestrator.checkpoints)


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    class Silent(Poisoned):
        def update_policy(self, batch, *, phase):
            return {"loss": super().update_policy(batch, phase=phase)["count"]}

        update_policy.__hook__ = Counter.hooks()["update_policy"]

    orchestrator, line, _ = poisoned(tmp_path / "run", workflow=Silent(), cadence=CheckpointCadence(updates=7))
    assert line.startswith("workflow.weight holds NaN or infinity after update 7 ")
    assert orchestrator.checkpoints.entries() == []


class Statistician(Counter):
    """Holds numbers of every kind that a checkpoint has of a workflow."""

    def initialize(self, context):
        super().initialize(context)
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.returns = torch.zeros(2, dtype=torch.bfloat16)
        self.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)

    def get_state(self):
        return super().get_state() | {"returns": self.returns, "lowest": -math.inf}


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize(
    ("name", "leaf_of"),
    [
        ("workflow.scale", lambda workflow: workflow.scale),
        ("workflow_state.returns", lambda workflow: workflow.returns),
        (
            "optimizers.policy.state.0.exp_avg_sq",
            lambda workflow: workflow.optimizer.state[workflow.weight]["exp_avg_sq"],
        ),
        ("optimizers.policy.param_groups.0.lr", lambda workflow: workflow.optimizer.param_groups[0]["lr"]),
    ],
)
def test_all_that_is_learned_is_looked_at_and_named(bad, name, leaf_of, tmp_path):
    orchestrator = build(tmp_path / "run", workflow=Statistician(), phases=PHASES, total=12)
    orchestrator.run()  # numbers that are no tensors are a workflow's own affair: one of its is infinite
    leaf_of(orchestrator.workflow).view(-1)[-1] = bad
    with pytest.raises(NotFiniteError, match=rf"^{name} holds NaN or infinity$"):
        orchestrator.save()


class Reads(TorchDispatchMode):
    """Counts the numbers that are fetched from a device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **kwargs or {})


def test_looking_waits_once_however_much_there_is(tmp_path):
    orchestrator = build(tmp_path / "run", workflow=Statistician(), phases=PHASES, total=12)
    orchestrator.run()
    orchestrator.workflow.many = torch.nn.ParameterList(torch.ones(3) for _ in range(20))
    with Reads() as reads:
        orchestrator._guard.check()
    assert reads.count == 1


def test_a_device_that_failed_does_not_hide_why(tmp_path):
    class Broken(Counter):
        is_broken = False

        def act(self, *args, **kwargs):
            self.is_broken = True
            raise RuntimeError("CUDA error: an illegal memory access")

        def state_dict(self, *args, **kwargs):
            if self.is_broken:
                raise RuntimeError("CUDA error: it is still so")
            return super().state_dict(*args, **kwargs)

    with pytest.raises(RuntimeError, match="an illegal memory access"):
        build(tmp_path / "run", workflow=Broken()).run()


def test_a_signal_does_not_save_a_poisoned_run(tmp_path):
    class Asked(Poisoned):
        def act(self, *args, **kwargs):
            if len(self.calls) == POISONED_UPDATE:
                signal.raise_signal(signal.SIGINT)
            return super().act(*args, **kwargs)

    orchestrator, line, _ = poisoned(tmp_path / "run", workflow=Asked(), cadence=CheckpointCadence(updates=3))
    assert line.startswith("train/value_loss is nan")
    assert_the_newest_checkpoint_is_good(orchestrator.checkpoints)


@pytest.mark.parametrize("error", [RuntimeError("probability tensor contains nan"), EnvironmentFault("fell over")])
def test_what_a_poisoned_policy_breaks_is_not_blamed(error, tmp_path):
    class Broken(Poisoned):
        def act(self, *args, **kwargs):
            if len(self.calls) == POISONED_UPDATE:
                raise error
            return super().act(*args, **kwargs)

    assert poisoned(tmp_path / "run", workflow=Broken())[1].startswith("train/value_loss is nan")


def test_an_action_of_a_poisoned_policy_does_not_hide_the_term(tmp_path):
    class Wild(Poisoned):
        def act(self, obs, carry, **kwargs):
            actions, extras, carry = super().act(obs, carry, **kwargs)
            return actions.float() * (math.nan if len(self.calls) >= POISONED_UPDATE else 1.0), extras, carry

    def step(env_step, actions):
        if not torch.isfinite(actions).all():
            raise EnvironmentFault("was given NaN")
        return env_step(actions.long())

    def build_strict(path, **options):
        orchestrator = build(path, **options)
        orchestrator.collector.env.step = functools.partial(step, orchestrator.collector.env.step)
        return orchestrator

    orchestrator = build_strict(tmp_path / "run", workflow=Wild(), phases=PHASES, buffers=replay())
    with pytest.raises(LabError, match=r"^train/value_loss is nan, train/total is nan after update 7 "):
        orchestrator.run()


def test_an_action_that_is_no_number_is_the_policys(tmp_path):
    class Wild(Counter):
        def act(self, obs, carry, **kwargs):
            actions, extras, carry = super().act(obs, carry, **kwargs)
            return torch.where(obs[..., 0] > -1, math.nan, actions.float()), extras, carry

    def step(env_step, actions):
        if not torch.isfinite(actions).all():
            raise EnvironmentFault("was given NaN")
        return env_step(actions)

    orchestrator = build(tmp_path / "run", workflow=Wild())
    orchestrator.collector.env.step = functools.partial(step, orchestrator.collector.env.step)
    with pytest.raises(
        LabError, match=r"an action is NaN or infinite after update 0 \(env step 0\); no checkpoint was"
    ):
        orchestrator.run()


def test_other_errors_stay_as_they_are(tmp_path):
    class Broken(Counter):
        def act(self, *args, **kwargs):
            raise KeyError("unrelated")

    with pytest.raises(KeyError, match="unrelated"):
        build(tmp_path / "run", workflow=Broken()).run()
    assert not (tmp_path / "run" / "crash").exists()


def test_a_dump_that_cannot_be_written_hides_nothing(tmp_path):
    (tmp_path / "run").mkdir()
    orchestrator = build(tmp_path / "run", workflow=Poisoned(), phases=PHASES, cadence=CheckpointCadence())
    (tmp_path / "run" / "crash").write_text("in the way")
    with pytest.raises(LabError, match=r"^train/value_loss is nan.*; no dump: cannot save a checkpoint in .*crash"):
        orchestrator.run()


def test_numpy_does_not_warn_of_what_the_guard_finds(tmp_path):
    class Loud(Counter):
        def update_policy(self, batch, *, phase):
            return {"loss": float(np.float32(1e30) * np.float32(1e30))}

        update_policy.__hook__ = Counter.hooks()["update_policy"]

    with pytest.raises(LabError, match="^train/loss is inf after update 1 "):
        build(tmp_path / "run", workflow=Loud()).run()
