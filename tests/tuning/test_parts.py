"""Slots, the objective and the directory of a sweep."""

import json
import os
from pathlib import Path

import pytest

from rl_lab.core.errors import ConfigError, RunDirectoryError
from rl_lab.tuning.objective import GrowingMetric
from rl_lab.tuning.slots import list_gpus, make_slots, num_cores
from rl_lab.tuning.sweep_directory import SweepDirectory, Trial


def variables(*given):
    return [slot.variables.get("CUDA_VISIBLE_DEVICES") for slot in make_slots(*given)]


def test_slots_share_out_the_gpus():
    gpus = ["0", "1", "2", "3"]
    assert variables(None, None, [], 3) == [None] * 3  # a slot per core
    assert variables(2, None, [], 8) == [None] * 2
    assert variables(None, None, gpus, 8) == gpus  # a slot per GPU
    assert variables(6, None, gpus, 8) == ["0", "1", "2", "3", "0", "1"]  # shared
    assert variables(None, 2, gpus, 8) == ["0,1", "2,3"]
    assert variables(2, 0, gpus, 8) == ["", ""]  # hidden


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, 1, [], 4), "this machine has no GPU"),
        ((None, 3, ["0", "1"], 4), "3 are wanted, but 2 are here"),
        ((3, 1, ["0", "1"], 4), "need 3, not 2"),
    ],
)
def test_slots_that_cannot_be(given, message):
    with pytest.raises(ConfigError, match=message):
        make_slots(*given)


def test_gpus_are_those_that_may_be_used(tmp_path):
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert list_gpus({}, tmp_path) == ["0", "2", "10"]
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "3,GPU-abc"}, tmp_path) == ["3", "GPU-abc"]
    assert list_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == []


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("3200000 100000", 8)]
)
def test_cores_are_those_that_the_container_grants(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert num_cores(tmp_path / "cpu.max") == cores
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert num_cores(tmp_path / "none") == 5


def test_a_metric_is_read_while_it_grows_and_after_it_was_cut_back(tmp_path):
    file = tmp_path / "metrics.jsonl"
    metric = GrowingMetric(file, "eval/return")
    assert metric.update() == []
    rows = [json.dumps({"step": n, "eval/return": float(n)}) + "\n" for n in range(4)]
    file.write_text(rows[0] + '{"step": 1, "train/loss": 2.0}\n' + rows[1] + rows[2][:9])
    assert metric.update() == [0, 1]  # half a line is not there yet
    with file.open("a") as more:
        more.write(rows[2][9:])
    assert metric.update() == [0, 1, 2]
    file.write_text(rows[0])
    assert metric.update() == [0]
    file.write_text(rows[0] + rows[3])
    assert metric.update() == [0, 3]
    assert [metric.score(kind, "minimize") for kind in ("last", "mean", "best")] == [3, 1.5, 0]
    assert metric.score("best", "maximize") == 3
    unknown = GrowingMetric(file, "eval/retrn")
    with pytest.raises(ConfigError, match=r"did you mean 'eval/return'\?"):
        unknown.score("last", "maximize")


def test_a_damaged_plan_is_one_line(tmp_path):
    directory, trial = SweepDirectory(tmp_path / "sweep"), Trial("trial_0000", {"a": 1})
    with pytest.raises(RunDirectoryError, match="no sweep in"):
        directory.read_plan()
    directory.make()
    directory.write_plan({"sweep": {"a": [1]}}, [trial])
    assert directory.read_plan() == ({"sweep": {"a": [1]}}, [trial])
    for damage in ("{", '{"trials": 3}', "[]"):
        directory.plan_file.write_text(damage)
        with pytest.raises(RunDirectoryError, match="is damaged"):
            directory.read_plan()
    directory.write_plan({}, [])
    directory.plan_file.write_text(
        directory.plan_file.read_text().replace('"schema_version": 1', '"schema_version": 2')
    )
    with pytest.raises(RunDirectoryError, match="schema_version 2"):
        directory.read_plan()


def test_why_a_trial_failed_is_the_last_error_of_its_log(tmp_path):
    directory, trial = SweepDirectory(tmp_path), Trial("t")
    directory.make()
    assert directory.state(trial) == "waiting"
    assert directory.note_failure(trial, -9) == "killed by signal 9"
    Path(directory.log_file(trial)).write_text("error: first\nnoise\nerror: the motor is on fire\n")
    assert directory.note_failure(trial, 1) == directory.failure(trial) == "the motor is on fire"
    assert directory.state(trial) == "failed"
    directory.log_file(trial).write_text("learner | error: no room\nactor | error: no learner\n")
    assert directory.note_failure(trial, 1) == "no room"
    directory.forget_failure(trial)
    assert directory.state(trial) == "waiting"
    with directory.log_file(trial).open("a") as log:
        log.write("second attempt\n")
    assert directory.note_failure(trial, -9) == "killed by signal 9"  # the motor was the first attempt's
