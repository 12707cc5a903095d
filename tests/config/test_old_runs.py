"""Runs that older labs have left behind: what the options of today are not, and what their checkpoints can still do."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.tracking.fingerprint import tree_hash

OLD = Path(__file__).parent / "old_runs"
LAYOUT_2 = [  # of model-free ones before experiment.precision, .devices and others were options
    *("checkpoint_2_dqn", "checkpoint_2_sac", "checkpoint_2_dreamer", "checkpoint_2_tdmpc"),
]


@pytest.fixture
def old_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def unpack(name):
        shutil.unpack_archive(OLD / f"{name}.zip", name)
        return name

    return unpack


def lab(*words):
    return CliRunner().invoke(app, list(words))


def position(run):
    return json.loads(Path(run, "metrics.json").read_text())["position"]["step"]


@pytest.mark.parametrize("name", ["checkpoint_1_ppo", *LAYOUT_2])
def test_their_policies_play(old_run, name):
    result = lab("evaluate", old_run(name), "--episodes", "2", "--json")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", LAYOUT_2)
def test_they_go_on_from_where_they_were(old_run, name):
    run = old_run(name)
    before = position(run)
    result = lab("resume", run, f"training.total_timesteps={before + 64}", "--json")
    assert result.exit_code == 0, result.output
    assert position(run) == before + 64
    rows = [json.loads(line)["step"] for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    assert rows == sorted(rows)


def test_of_the_first_layout_only_the_weights_go_on(old_run):
    run = old_run("checkpoint_1_ppo")
    result = lab("resume", run)
    assert result.exit_code != 0
    assert "made by an older lab" in result.stderr
    assert "warm_start" in result.stderr
    result = lab("resume", run, "--mode", "warm_start", "--json")
    assert result.exit_code == 0, result.output


def files_of(run):
    return {path.relative_to(run): path.read_bytes() for path in Path(run).rglob("*") if path.is_file()}


def told(result, code=0):
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_configs_are_written_anew_only_when_it_is_said(old_run):
    run = old_run("checkpoint_2_sac")
    before = files_of(run)
    words = ("runs", "migrate", "--root", ".")
    dry = lab(*words)
    assert "config.yaml, composed.yaml (experiment.num_seeds, " in dry.stdout
    assert "1 runs can be brought into today's layout\nnothing was changed; --yes does it" in dry.stdout
    assert files_of(run) == before
    planned = told(lab(*words, "--json"))["runs"][0]
    assert told(lab(*words, "--yes", "--json"))["runs"] == [planned]
    was, config = (yaml.safe_load(text) for text in (before[Path("config.yaml")], Path(run, "config.yaml").read_text()))
    assert (was["experiment"].get("devices"), config["experiment"]["devices"]) == (None, 1)
    assert "experiment.devices" in planned["keys"]
    assert {block: config[block] | values for block, values in was.items() if isinstance(values, dict)}.items() <= (
        config.items()
    )  # what was there is there
    kept = files_of(run)
    for name in ("config.yaml", "composed.yaml", "manifest.json"):
        assert kept[Path("before_migration", name)] == before[Path(name)]
    assert {path: kept[path] for path in before if path.name not in planned["files"]} == {
        path: content for path, content in before.items() if path.name not in planned["files"]
    }
    assert told(lab(*words, "--yes", "--json"))["runs"] == []  # nothing is left to do
    assert lab("resume", run, f"training.total_timesteps={position(run) + 64}").exit_code == 0


def test_of_the_first_layout_the_checkpoint_stays_as_it_is(old_run):
    run = old_run("checkpoint_1_ppo")
    (entry,) = Path(run, "checkpoints").glob("[0-9]*")
    before = files_of(entry)
    (planned,) = told(lab("runs", "migrate", run, "--yes", "--json"))["runs"]
    assert planned["kept"] == {entry.name: "running episodes cannot be said in today's layout"}
    assert files_of(entry) == before


@pytest.mark.parametrize("killed_at", [None, 1, 2], ids=["whole", "between", "before_the_end"])
def test_checkpoints_are_written_anew_where_all_of_them_can_be(old_run, monkeypatch, killed_at):
    """A lab whose third layout calls the workflow's weights otherwise."""
    from rl_lab.config import migration
    from rl_lab.tracking import checkpoint_files, checkpoint_migrations, checkpoint_rewrite
    from rl_lab.tracking.checkpoint import CheckpointStore

    run = old_run("checkpoint_2_dqn")
    (entry,) = CheckpointStore(Path(run, "checkpoints")).entries()
    before, state = files_of(entry.path), CheckpointStore.load(entry.path).state
    renamed = {key: value for key, value in state.items() if key != "workflow"} | {"weights": state["workflow"]}
    step = checkpoint_migrations.Migration(
        lambda old: {k: v for k, v in old.items() if k != "workflow"} | {"weights": old["workflow"]}
    )
    monkeypatch.setattr(checkpoint_migrations, "MIGRATIONS", (*checkpoint_migrations.MIGRATIONS, step))
    for module in (checkpoint_files, checkpoint_rewrite, migration):
        monkeypatch.setattr(module, "SCHEMA_VERSION", 3)
    if killed_at:  # right after the old one went aside, or when the new one was in its place
        renames = iter([os.rename] * killed_at)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_rewrite, "os", SimpleNamespace(rename=lambda *paths: next(renames)(*paths)))
            assert lab("runs", "migrate", run, "--yes").exit_code == 1
        assert entry.path.exists() == (killed_at == 2)
    planned = told(lab("runs", "migrate", run, "--yes", "--json"))["runs"][0]
    assert planned["checkpoints"] == [entry.path.name]
    (fresh,) = CheckpointStore(Path(run, "checkpoints")).entries()
    assert (fresh.schema_version, fresh.counters, fresh.score) == (3, entry.counters, entry.score)
    assert tree_hash(CheckpointStore.load(fresh.path).state) == tree_hash(renamed) != tree_hash(state)
    assert files_of(Path(run, "before_migration", "checkpoints", entry.path.name)) == before
    shutil.rmtree(fresh.path)  # as rotation and `lab runs clean` do
    assert told(lab("runs", "migrate", run, "--yes", "--json"))["runs"] == []
    assert not fresh.path.exists()
