import json

import pytest

from rl_lab.config.build import assemble, build
from rl_lab.config.compose import resolve
from rl_lab.config.record import record_start
from rl_lab.config.resume import (
    Start,
    check_start,
    config_files,
    find_start,
    has_checkpoints,
    load_start,
    read_config,
    recompose,
    restore,
)
from rl_lab.core import CheckpointError, ConfigError, RunDirectoryError
from rl_lab.tracking import checkpoint_files, checkpoint_migrations
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.checkpoint_migrations import Migration
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.tracking.run_directory import RunDirectory


@pytest.fixture
def train(composed, targets, tmp_path):
    def go(name, *overrides, start=None, config=None):
        parts = assemble(config or composed(*overrides), targets)
        path = tmp_path / name
        run = RunDirectory.open(path) if path.exists() else RunDirectory.create(tmp_path, "tiny", 1, path)
        start = check_start(start, parts) if start else None
        record_start(run, parts, start)
        orchestrator = build(parts, run)
        if start:
            restore(orchestrator, run, start, load_start(start))
        orchestrator.run()
        return run

    return go


def test_a_longer_run_is_the_same_as_one_that_was_longer_from_the_start(train):
    whole = train("whole", "training.total_timesteps=256")
    part = train("part", "training.total_timesteps=128")
    assert fingerprint(part) != fingerprint(whole)
    longer = recompose(part, ["training.total_timesteps=256"])
    assert longer.training.phases[0].duration_steps == 256  # it follows the total, as its YAML says
    train("part", config=longer, start=Start(part, "exact"))
    assert fingerprint(part) == fingerprint(whole)
    for name in ("metrics_file", "step_chain_file", "update_chain_file"):
        assert vars(part)[name].read_bytes() == vars(whole)[name].read_bytes() != b""
    assert read_config(part)["training"]["total_timesteps"] == 256
    events = part.events_file.read_text()
    assert '"changes": ["training.total_timesteps: 128 -> 256"' in events


def test_a_new_run_goes_on_from_a_checkpoint_of_another(train, tmp_path):
    whole = train("whole", "training.total_timesteps=256", "training.keep_last=9")
    checkpoint = whole.checkpoints / "000001"
    start = find_start(checkpoint, "exact")
    assert (start.source.path, start.checkpoint) == (whole.path, checkpoint)
    fork = train("fork", "training.total_timesteps=256", "training.keep_last=9", start=start)
    hashes = fingerprint(fork)
    assert hashes == fingerprint(whole)
    assert fork.step_chain_file.read_bytes() == whole.step_chain_file.read_bytes()
    assert fork.read_manifest()["parent"] == str(checkpoint)


def test_a_warm_start_takes_weights_and_begins_anew(train, composed, targets, tmp_path):
    source = train("source")
    parts = assemble(composed("algorithm.gamma=0.5", "experiment.seed=9"), targets)
    run = RunDirectory.create(tmp_path, "warm", 9)
    orchestrator = build(parts, run)
    before = orchestrator.workflow.actor.weight.clone()
    start = check_start(Start(source, "warm_start"), parts)
    loaded = load_start(start)
    restore(orchestrator, run, start, loaded)
    assert not before.equal(orchestrator.workflow.actor.weight)
    assert orchestrator.workflow.actor.weight.equal(loaded.state["workflow"]["actor.weight"])
    assert orchestrator.counters.env_steps == 0
    assert not orchestrator.context.optimizers["policy"].state
    restore(orchestrator, run, Start(source, "warm_start_optimizer"), loaded)
    assert orchestrator.context.optimizers["policy"].state


def test_other_changes_are_refused(train, targets):
    run = train("run")
    parts = assemble(recompose(run, ["algorithm.gamma=0.5"]), targets)
    with pytest.raises(ConfigError, match=r"cannot change algorithm.gamma: 0.9 -> 0.5"):
        check_start(Start(run, "exact"), parts)


def test_an_environment_that_cannot_be_restored_is_refused_early(train, targets):
    run = train("run")
    parts = assemble(recompose(run), targets)
    object.__setattr__(parts.env.spec, "exact_resume", False)
    with pytest.raises(CheckpointError, match="cannot be restored exactly"):
        check_start(Start(run, "exact"), parts)
    assert check_start(Start(run, "warm_start"), parts).mode == "warm_start"


def test_a_run_that_said_it_cannot_be_restored_is_not_resumed(train, targets):
    run = train("run")
    run.write_manifest({"exact_resume": False})  # its checkpoints hold no state of the environment
    parts = assemble(recompose(run), targets)
    with pytest.raises(CheckpointError, match="cannot be restored exactly"):
        check_start(Start(run, "exact"), parts)


def test_checkpoints_of_an_older_lab_give_their_weights_only(train, targets, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(checkpoint_files, "SCHEMA_VERSION", 1)
        run = train("run")
    parts = assemble(recompose(run), targets)
    newest = sorted(run.checkpoints.glob("0*"))[-1]
    for start in (Start(run, "exact"), find_start(newest, "exact")):
        with pytest.raises(CheckpointError, match=f"{newest} was made by an older lab .* mode warm_start") as caught:
            check_start(start, parts)
        assert "\n" not in str(caught.value)
    for mode in ("warm_start", "warm_start_optimizer"):
        fresh = assemble(recompose(run), targets)
        start = check_start(Start(run, mode), fresh)
        loaded = load_start(start)
        restore(build(fresh, run), run, start, loaded)
        assert fresh.workflow.actor.weight.equal(loaded.state["workflow"]["actor.weight"])
        assert bool(fresh.context.optimizers["policy"].state) == (mode == "warm_start_optimizer")
    assert check_start(Start(train("new"), "exact"), parts).mode == "exact"


def test_checkpoints_that_can_be_migrated_go_on_exactly(train, targets, monkeypatch):
    """As a later lab would: in its layout the counters have another name, and every step of the way is exact."""
    run = train("run")
    migrations = (*checkpoint_migrations.MIGRATIONS, Migration(lambda state: {**state, "counts": state["counters"]}))
    monkeypatch.setattr(checkpoint_migrations, "MIGRATIONS", migrations)
    monkeypatch.setattr(checkpoint_files, "SCHEMA_VERSION", 3)
    parts = assemble(recompose(run), targets)
    start = check_start(Start(run, "exact"), parts)
    loaded = load_start(start)
    assert loaded.manifest["schema_version"] == 2
    assert loaded.state["counts"] == loaded.state["counters"]
    orchestrator = build(parts, run)
    restore(orchestrator, run, start, loaded)
    assert orchestrator.counters.env_steps == loaded.manifest["counters"]["env_steps"]
    orchestrator.save()
    (newest,) = CheckpointStore(run.checkpoints).entries()[-1:]
    assert newest.schema_version == 3
    assert "counts" not in CheckpointStore.load(newest.path).state  # written in today's layout: nothing to do


def test_a_damaged_checkpoint_is_named(train, targets):
    run = train("run")
    newest = sorted(run.checkpoints.glob("0*"))[-1]
    (newest / "tensors.safetensors").write_bytes(b"")
    orchestrator = build(assemble(recompose(run), targets), run)
    loaded = load_start(Start(run, "exact"))
    restore(orchestrator, run, Start(run, "exact"), loaded)
    assert loaded.path != newest
    orchestrator.run()
    assert f"skipped a damaged checkpoint: {newest.name}" in run.events_file.read_text()


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("~training.keep_last", "takes key=value only"),
        ("experiment.seed=1,2", "takes key=value only"),
        ("training.phases.7.name=x", "training.phases.7.name=x: "),
    ],
)
def test_overrides_of_a_resume(train, override, text):
    run = train("run")
    with pytest.raises(ConfigError, match=text):
        recompose(run, [override])


def test_without_the_composed_file_the_resolved_one_counts(train, composed, targets):
    run = train("run")
    (run.path / "composed.yaml").unlink()
    config = recompose(run, ["training.total_timesteps=512"])
    assert resolve(config)["training"]["phases"][0]["duration_steps"] == 256
    for name, text in config_files(assemble(config, targets)).items():
        run.write_text(name, text)
    assert (run.path / "composed.yaml").is_file()


def test_foreign_directories_and_files(train, tmp_path):
    with pytest.raises(RunDirectoryError):
        find_start(tmp_path / "missing", "exact")
    run = train("run")
    assert has_checkpoints(run)
    for text in ("- a list", "{a: [", "schema_version: 99"):
        run.write_text("config.yaml", text)
        with pytest.raises((RunDirectoryError, ConfigError)) as error:
            read_config(run)
        assert "\n" not in str(error.value)


def test_a_fork_goes_on_from_everything_with_other_options(train, tmp_path):
    source = train("source", "training.total_timesteps=128", "training.keep_last=9")
    options = ["training.total_timesteps=256", "optimizers.policy.lr=0.05", "algorithm.gamma=0.5"]
    checkpoint = source.checkpoints / "000001"
    start = find_start(checkpoint, "fork")
    forked = train("fork", *options, start=start)
    rows = forked.metrics_file.read_bytes().splitlines()
    assert rows[0] == source.metrics_file.read_bytes().splitlines()[0]  # of before the fork
    steps = [json.loads(row)["step"] for row in rows]
    assert steps == sorted({*steps}) == [64, 128, 192, 256]
    assert '"changes": ["algorithm.gamma: 0.9 -> 0.5", "optimizers.policy.lr: 0.0003 -> 0.05"' in (
        forked.events_file.read_text()
    )
    newest = CheckpointStore(forked.checkpoints).load_newest().state["optimizers"]["policy"]
    assert [group["lr"] for group in newest["param_groups"]] == [0.05]
    assert forked.read_manifest()["parent"] == str(checkpoint)
    same = train("same", "training.total_timesteps=128", start=find_start(checkpoint, "fork"))
    assert fingerprint(same) == fingerprint(source)  # without changes it is the exact copy


def test_a_fork_cannot_become_another_agent(train, targets):
    run = train("run")
    parts = assemble(recompose(run, ["environment.num_envs=8"]), targets)
    with pytest.raises(ConfigError, match=r"a fork cannot change environment.num_envs: 4 -> 8 \(may change: longer"):
        check_start(Start(run, "fork"), parts)
