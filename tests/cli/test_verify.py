"""`lab runs verify`: a run that is repeated comes out again, and what was changed is found and named."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from rl_lab.cli import runs_verify
from rl_lab.cli.runs_verify import _overrides
from rl_lab.config.compose import compose
from rl_lab.config.migration import as_written, migrate_run
from rl_lab.config.overrides import parse_overrides
from rl_lab.config.trees import group_files
from rl_lab.core.errors import RunDirectoryError
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.verification import compare_runs
from tests.cli.test_alerts import PLUGIN as ALERT_PLUGIN
from tests.tracking.synthetic import make_run

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "verify_runs.py"
EVALUATED = ("training.eval_frequency=128", "training.num_eval_episodes=2")


def test_the_benchmark_has_a_run_of_every_workflow():
    text = BENCHMARK.read_text()
    named = re.findall(r'"(\w+)"', text[text.index("EXPERIMENTS = (") : text.index("def lab(")])
    targets = [OmegaConf.select(compose([f"+experiment={name}"]), "workflow._target_") for name in named]
    found = {target.rpartition(".")[0].rpartition(".")[2] for target in targets}
    assert found == {*group_files("workflow")}


@pytest.fixture
def first(train):
    assert train("--run-dir", "first", *EVALUATED).exit_code == 0
    return RunDirectory.open("first")


def again(train, *overrides):
    assert train("--run-dir", "again", *EVALUATED, "training.keep_last=100", *overrides).exit_code == 0
    return RunDirectory.open("again")


def test_an_untouched_run_comes_out_again_in_a_fresh_process(first, lab):
    before = sorted((path, path.stat().st_mtime_ns) for path in first.path.rglob("*"))
    result = lab("runs", "verify", "first", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["rows"], told["step"], told["divergence"]) == (
        len(first.metrics_file.read_text().splitlines()),
        256,
        None,
    )
    assert (told["vector_steps"], told["updates"]) == (64, 8)
    assert told["checkpoints"] == len(CheckpointStore(first.checkpoints).entries()) >= 2
    assert sorted((path, path.stat().st_mtime_ns) for path in first.path.rglob("*")) == before


def without_chain(run):
    """What a run from before there were chains looks like."""
    run.step_chain_file.unlink()
    run.update_chain_file.unlink()
    return run


def test_another_seed_is_found_at_the_first_step(first, train):
    verdict = compare_runs(first, again(train, "experiment.seed=2"))
    assert (verdict.vector_steps, verdict.updates) == (64, 8)  # of 4 environments; one after each 8
    assert (verdict.divergence.step, verdict.divergence.stream) == (4, "observations")
    assert "first difference at env step 4, in observations: vector step 1" in str(verdict.divergence)


def test_another_seed_is_found_at_the_first_row_of_a_run_without_chain(first, train):
    verdict = compare_runs(without_chain(first), again(train, "experiment.seed=2"))
    assert (verdict.vector_steps, verdict.updates) == (0, 0)
    assert verdict.divergence.step == 64
    assert verdict.divergence.stream in ("environment", "counters", "buffers")
    assert "first difference at env step 64" in str(verdict.divergence)


def test_another_learning_rate_is_found_at_the_first_update(first, train):
    divergence = compare_runs(first, again(train, "optimizers.policy.lr=3.0001e-4")).divergence
    assert (divergence.step, divergence.stream) == (32, "parameters")
    assert "update 1 of the hash chain" in divergence.detail
    assert compare_runs(first, RunDirectory.open("again"), steps=31).divergence is None


def flip(entry, name):
    """Flip the lowest bit of a parameter in a checkpoint, as if the run had computed it."""
    state = CheckpointStore.load(entry.path).state
    state["workflow"][name].view(-1)[0:1].view(torch.int32)[0] ^= 1
    rewritten = CheckpointStore(Path("rewritten"))
    path = rewritten.save(state, counters=entry.counters, phase=entry.phase, score=entry.score)
    shutil.rmtree(entry.path)
    shutil.move(path, entry.path)


def test_one_bit_in_a_checkpoint_is_found_in_the_run_that_went_on_from_it(train, lab):
    assert train("--run-dir", "first", "training.total_timesteps=128").exit_code == 0
    first = RunDirectory.open("first")
    entry = CheckpointStore(first.checkpoints).entries()[-1]
    assert entry.counters["env_steps"] == 128
    flip(entry, "actor.weight")
    assert lab("resume", "first", "training.total_timesteps=256").exit_code == 0
    shutil.rmtree(first.checkpoints)  # what it went on from is long gone
    first.checkpoints.mkdir()
    result = lab("runs", "verify", "first", "--json")
    assert result.exit_code == 1, result.stderr
    divergence = json.loads(result.stdout)["divergence"]
    assert 128 < divergence["step"] <= 160  # within the next rollout, or by the update after it
    assert divergence["stream"] in ("actions", "parameters")


def test_one_bit_of_a_parameter_is_found(first, train):
    other = again(train)
    assert compare_runs(first, other).divergence is None
    entry = CheckpointStore(first.checkpoints).entries()[0]
    state = CheckpointStore.load(entry.path).state
    name = next(name for name, value in state["workflow"].items() if value.dtype.is_floating_point)
    flip(entry, name)
    divergence = compare_runs(first, other).divergence
    assert (divergence.step, divergence.stream) == (entry.counters["env_steps"], "parameters")
    assert divergence.detail == f"workflow.{name}[0] (checkpoint {entry.path.name} differs in parameters)"


def test_a_changed_row_a_missing_row_and_a_damaged_checkpoint(first, train):
    other = again(train)
    rows = [json.loads(line) for line in other.metrics_file.read_text().splitlines()]
    changed = [
        {**row, "train/loss": row["train/loss"] + 1e-9} if row["step"] == 128 and "train/loss" in row else row
        for row in rows
    ]
    other.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in changed))
    divergence = compare_runs(first, other).divergence
    assert (divergence.step, divergence.stream) == (128, "parameters")
    assert divergence.detail.startswith("train/loss was ")
    assert compare_runs(first, other, steps=64).divergence is None
    other.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    assert compare_runs(first, other).divergence.stream == "counters"
    other.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tensors = CheckpointStore(first.checkpoints).entries()[-1].path / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(bytes(content))
    divergence = compare_runs(first, other).divergence
    assert divergence.stream == "checkpoint"
    assert "was changed (its sha256 differs)" in divergence.detail


def _with_rows(path, steps, status="done"):
    """A run that logged at these steps and has no checkpoint."""
    run = RunDirectory.open(make_run(path.parent, path.name, curve=[(step, float(step)) for step in steps]))
    run.set_status(status)
    return run


def test_where_nothing_was_compared_nothing_is_verified(tmp_path):
    empty, full = _with_rows(tmp_path / "a", [100], "stopped"), _with_rows(tmp_path / "b", [100, 200])
    assert compare_runs(empty, full).rows == 1
    with pytest.raises(RunDirectoryError, match=r"nothing to compare: .*/a has no row .* up to env step 50"):
        compare_runs(empty, full, steps=50)
    empty.metrics_file.write_text("")
    with pytest.raises(RunDirectoryError, match="nothing to compare"):
        compare_runs(empty, full)


def test_a_repetition_that_collects_nothing_begins_with_its_first_row(tmp_path):
    run = _with_rows(tmp_path / "a", [0])
    assert runs_verify._has_begun(run.path)
    run.metrics_file.write_text("")
    assert not runs_verify._has_begun(run.path)


def test_steps_beyond_the_run_compare_as_far_as_it_came(tmp_path):
    """A stopped run is repeated, and the repetition has gone on."""
    short, long = _with_rows(tmp_path / "a", [100, 200], "stopped"), _with_rows(tmp_path / "b", [100, 200, 300])
    verdict = compare_runs(short, long, steps=1000)
    assert (verdict.rows, verdict.step, verdict.divergence) == (2, 200, None)
    fewer = _with_rows(tmp_path / "c", [100, 300])
    assert compare_runs(long, fewer, steps=250).divergence.detail == "2 rows and then 1"


@pytest.mark.parametrize("path", ["runs/lr=0.1,seed=2/checkpoints/1", "it's here", "a b\\", "plain"])
def test_where_a_run_started_from_is_said_as_it_is(tmp_path, path):
    run = RunDirectory.open(make_run(tmp_path, "a", training={"resume_path": path}))
    (word,) = [word for word in _overrides(run, run) if word.startswith("training.resume_path=")]
    (override,) = parse_overrides([word])
    assert override.value() == path


def test_a_run_that_cannot_be_repeated_is_one_line(first, lab, fails):
    assert "unknown run in" in fails(lab("runs", "verify", "nowhere"), 1)
    (first.code / "source.zip").unlink()
    assert "source.zip" in fails(lab("runs", "verify", "first"), 1)


def rows_of(result, code=0):
    """How many rows were compared, and the difference that was found."""
    assert result.exit_code == code, result.stderr
    told = json.loads(result.stdout)
    return told["rows"], told["divergence"]


def test_a_repetition_that_is_ended_late_is_still_one(first, lab, monkeypatch):
    """The signal that ends it may come when it has nothing left to do but to go, and nobody listens any more."""
    wait = runs_verify._wait

    def late(child, replica, limit):
        assert not wait(child, replica, 10_000)  # it comes to its end
        child.returncode = -signal.SIGTERM
        return True

    monkeypatch.setattr(runs_verify, "_wait", late)
    assert rows_of(lab("runs", "verify", "first", "--steps", "100", "--json")) == (1, None)


def test_a_fork_comes_out_again_though_its_source_has_gone_on(train, lab):
    assert train("--run-dir", "first", "training.total_timesteps=128", "training.keep_last=9").exit_code == 0
    fork = ("training.resume_path=first", "training.resume_mode=fork", "optimizers.policy.lr=1e-3")
    assert train("--run-dir", "fork", *fork).exit_code == 0
    assert RunDirectory.open("fork").read_manifest()["updates"] == "eager"  # auto, which it must stay
    assert lab("resume", "first", "training.total_timesteps=192").exit_code == 0
    assert rows_of(lab("runs", "verify", "fork", "--json")) == (4, None)


def test_a_halted_run_comes_out_again_and_tells_nobody_twice(train, lab, fails, tmp_path):
    plugin, told = ("--plugin", ALERT_PLUGIN), tmp_path / "told.jsonl"
    tell = (f"alerts.file={told}", "alerts.channels=[file]", "+alerts.rules.second={kind:nan,channels:[log,file]}")
    low = "+alerts.rules.low={kind:below,metric:train/score,value:2,after:100,respond:stop}"
    stopped = train("--run-dir", "low", *plugin, "workflow._target_=alert_plugin.Scoring", low, *tell)
    assert stopped.exit_code == 1
    tainted = ("buffers.rollout._target_=alert_plugin.TaintedBuffer", "buffers.rollout.bad=[5]")
    assert train("--run-dir", "nan", *plugin, *tainted, *tell).exit_code == 1
    before = told.read_text()
    assert [json.loads(line)["rule"] for line in before.splitlines()] == ["low", "second"]
    assert rows_of(lab("runs", "verify", "low", "--json", *plugin)) == (2, None)
    assert rows_of(lab("runs", "verify", "nan", "--json", *plugin)) == (2, None)
    assert told.read_text() == before
    RunDirectory.open("nan").set_status("done")  # one that got through, where its repetition does not
    line = fails(lab("runs", "verify", "nan", *plugin), 1)
    assert "the run could not be repeated: train/loss is nan after update 5 (env step 160)" in line


def test_the_runs_own_code_is_told_only_of_options_that_it_knows(tmp_path):
    run = RunDirectory.open(make_run(tmp_path, "a", training={"keep_last": 3}))
    assert _overrides(run, run) == ["training.keep_last=1000000"]


def test_of_a_migrated_run_its_own_code_gets_what_it_was(tmp_path):
    run = RunDirectory.open(make_run(tmp_path, "a", training={"keep_last": 3}))
    before = run.config_file.read_text()
    assert as_written(run, tmp_path / "origin") is run
    migrate_run(run)
    assert "video_frequency" in run.read_config()
    origin = as_written(run, tmp_path / "origin")
    assert (origin.path, origin.id, origin.read_config()) == (tmp_path / "origin", run.id, before)
    assert _overrides(run, origin) == ["training.keep_last=1000000"]
