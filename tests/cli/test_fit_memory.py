"""Buffers that do not fit: refused, or made smaller and said so."""

import json
from pathlib import Path

import pytest
import yaml

from rl_lab.config import memory
from tests.cli.test_alerts import PLUGIN, events

SIZED = "buffers.rollout._target_=tiny_plugin.SizedBuffer"  # 48 bytes per step
LARGE = [SIZED, "buffers.rollout.capacity=5000"]


@pytest.fixture(autouse=True)
def free(monkeypatch):
    monkeypatch.setattr(memory, "free_host_memory", lambda: 100_000)


def capacity(run):
    return yaml.safe_load(Path(run, "config.yaml").read_text())["buffers"]["rollout"]["capacity"]


def test_what_does_not_fit_is_refused_unless_asked(train, fails):
    line = fails(train(*LARGE), 2)
    assert line.endswith("does not fit into the 100.0 kB that are free on cpu; at most buffers.rollout.capacity=1979")


def test_it_is_made_to_fit_said_and_kept(train):
    asked = [*LARGE, "experiment.fit_memory=true", "--run-dir", "run"]
    result = train(*asked)
    assert result.exit_code == 0, result.output
    assert 1979 * 48 <= 95_000 < 1980 * 48
    line = "buffers.rollout.capacity: 1,979 instead of 5,000, which do not fit"
    assert line in result.stdout
    assert "buffer rollout: 1,979 steps of 48 bytes" in result.stdout
    assert capacity("run") == 1979
    assert json.loads(Path("run/manifest.json").read_text())["fitted_memory"] == {
        "buffers.rollout.capacity": [5000, 1979]
    }
    assert [event["message"] for event in events("run", "fitted_memory")] == [line]
    assert train(*asked, "training.total_timesteps=320").exit_code == 0  # the same command goes on with what there is
    assert capacity("run") == 1979


def test_an_operator_leaves_the_seat_before_the_next_takes_it(train):
    guest = ["--plugin", PLUGIN, "+training.operator={_target_: alert_plugin.Guest, is_live: false}"]
    result = train(*LARGE, *guest, "experiment.fit_memory=true", "--run-dir", "run")
    assert result.exit_code == 0, result.output
    assert capacity("run") == 1979


def test_what_fits_is_left_alone(train):
    assert train(SIZED, "buffers.rollout.capacity=50", "experiment.fit_memory=true", "--run-dir", "run").exit_code == 0
    assert capacity("run") == 50
    assert events("run", "fitted_memory") == []
    assert "fitted_memory" not in json.loads(Path("run/manifest.json").read_text())


def test_what_cannot_be_made_to_fit_is_refused(train, fails, monkeypatch):
    monkeypatch.setattr(memory, "free_host_memory", lambda: 10)
    assert "at most buffers.rollout.capacity=0" in fails(train(*LARGE, "experiment.fit_memory=true"), 2)
    monkeypatch.setattr(memory, "free_host_memory", lambda: 1_000)
    unsaid = [SIZED, "experiment.fit_memory=true"]  # the capacity is the class's own
    assert "at most buffers.rollout.capacity=19" in fails(train(*unsaid), 2)
    assert not Path("experiments").exists()
