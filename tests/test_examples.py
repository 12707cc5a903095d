"""The example of an algorithm outside the package runs, resumes to the bit and learns."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.tracking.run_directory import RunDirectory

EXAMPLE = Path(__file__).parents[1] / "examples" / "reinforce"
PLUGIN = ("--plugin", str(EXAMPLE / "reinforce.py"))
TRAIN = ("train", "+experiment=reinforce_cartpole", "--config-dir", str(EXAMPLE / "configs"), *PLUGIN)
SMALL = ("environment.num_envs=4", "training.phases.0.workflow_hooks=[{collect: 16}, update_policy]")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("LAB_EXPERIMENTS", "LAB_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def lab(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def duration(steps):
    return f"training.total_timesteps={steps}", f"training.phases.0.duration_steps={steps}"


def rows(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def test_reinforce_runs_on_a_tiny_budget():
    lab(*TRAIN, "budget=tiny", "--run-dir", "tiny")
    assert Path("tiny", "status").read_text() == "done\n"
    losses = [row["train/loss"] for row in rows("tiny") if "train/loss" in row]
    assert losses
    assert all(abs(loss) < 10 for loss in losses)


def test_reinforce_goes_on_to_the_bit():
    lab(*TRAIN, *SMALL, *duration(512), "--run-dir", "whole")
    lab(*TRAIN, *SMALL, *duration(256), "--run-dir", "half")
    halfway = fingerprint(RunDirectory.open(Path("half")))
    lab("resume", "half", *duration(512), *PLUGIN)
    whole, resumed = (fingerprint(RunDirectory.open(Path(name))) for name in ("whole", "half"))
    assert resumed == whole
    assert resumed["parameters"] != halfway["parameters"]


@pytest.mark.learning
def test_reinforce_learns():
    lab(*TRAIN, "--run-dir", "learned")
    returns = [row["eval/return"] for row in rows("learned") if "eval/return" in row]
    assert returns[-1] >= 150  # a random policy is worth about 20, the longest episode 500
