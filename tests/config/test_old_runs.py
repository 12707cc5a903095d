"""Runs that older labs have left behind: what the options of today are not, and what their checkpoints can still do."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app

OLD = Path(__file__).parent / "old_runs"
LAYOUT_2 = ["checkpoint_2_dqn", "checkpoint_2_sac"]  # before experiment.precision, .devices and others were options


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
