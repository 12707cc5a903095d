"""`lab sweep` as a person runs it, stops it and kills it."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.tracking.catalogue import find_experiments
from tests.tuning.sweep_process import CONFIG, fingerprints, finish, start, wait_for

KILL, KILL_ALL, CTRL_C = range(3)
THREE = ["sweep", "three.yaml", *CONFIG, "--root", "runs"]
# while a file `slow` is there
SLOW = ["environment._target_=tiny_plugin.FaultyEnv", "environment.fault=slow", "environment.at=0"]


def states(sweep):
    return [path.read_text().strip() for path in sorted(Path(sweep).glob("trials/*/status"))]


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def newest_checkpoints(trials):
    paths = trials.glob("*/checkpoints/[0-9]*")
    return {path.parts[-3]: int(path.name) for path in sorted(paths, key=lambda path: int(path.name))}


def interrupt(number, words, sweep, goal):
    """Start the command, wait until a trial has so many checkpoints more, stop it; return its exit code and the trial.

    Which trial that is, is not said: those that a killed command left behind are gone on with last.
    """
    before, advanced = newest_checkpoints(sweep / "trials"), []

    def has_advanced():
        now = newest_checkpoints(sweep / "trials")
        advanced[:] = [trial for trial in now if now[trial] - before.get(trial, 0) >= goal]
        return advanced and children(process.pid)

    process = start(words, sweep.parent)
    assert wait_for(has_advanced, process), Path("output.txt").read_text()
    trials = children(process.pid)
    for pid in [process.pid, *(trials if number == KILL_ALL else [])]:
        os.kill(pid, signal.SIGINT if number == CTRL_C else signal.SIGKILL)
    process.join(600)
    return process.exitcode, advanced[0]


def test_a_sweep_that_is_killed_and_stopped_ends_as_one_that_was_not(place):
    """Killed alone, killed with its trials, stopped by Ctrl-C, then gone on with by two commands at once."""
    slow = [*THREE[:2], *SLOW, *THREE[2:]]
    whole = json.loads(finish([*slow, "--dir", "whole", "--json"], place))
    assert [trial["state"] for trial in whole["trials"]] == ["done"] * 3
    assert len({trial["values"]["optimizers.policy.lr"] for trial in whole["trials"]}) == 3
    assert {str(run.path) for run in find_experiments(place, status="done")} == {
        each["run"] for each in whole["trials"]
    }
    gate = Path("slow")
    gate.touch()
    killed, words = place / "killed", [*slow, "--dir", "killed"]
    assert interrupt(KILL, words, killed, 1)[0] == -signal.SIGKILL
    assert interrupt(KILL_ALL, words, killed, 3)[0] == -signal.SIGKILL  # one that is leaving writes two at most
    code, advanced = interrupt(CTRL_C, words, killed, 1)
    assert code == 130
    assert "the same command goes on" in Path("output.txt").read_text()
    assert (killed / "trials" / advanced / "status").read_text().strip() == "stopped"
    gate.unlink()
    changed = finish([*slow, "training.keep_last=3", "--dir", "killed"], place, code=2)
    assert "overrides.6 is 'training.keep_last=3' now, but was None" in changed
    commands = [start(words, place, f"{name}.txt") for name in "ab"]
    for command in commands:
        command.join(600)
        assert command.exitcode == 0, Path("a.txt").read_text() + Path("b.txt").read_text()
    assert states("killed") == ["done"] * 3
    assert fingerprints("killed") == fingerprints("whole")


FAULTY = """\
base_config: conf/experiment/tiny.yaml
sweep:
  environment._target_: tiny_plugin.FaultyEnv
  environment.fault: raise
  environment.at: [5, 40]
parallel_jobs: 2
"""


def test_a_failed_trial_is_reported_and_the_rest_go_on(place):
    """The first fails at its fifth step whenever it begins, the second once: later it goes on from a checkpoint."""
    Path("faulty.yaml").write_text(FAULTY)
    words = ["sweep", "faulty.yaml", *CONFIG, "--root", "runs"]
    output = finish([*words, "--retries", "1"], place, code=1)
    assert "trial_0001 done" in output
    assert output.count("tried again: environment 'tensor/CartPole' raised RuntimeError: the motor is on fire") == 2
    assert "error: 1 of 2 trials failed: trial_0000 (environment" in output
    assert states("runs/faulty") == ["failed", "done"]
    assert '"kind": "resume"' in Path("runs/faulty/trials/trial_0001/events.jsonl").read_text()
    log = Path("runs/faulty/logs/trial_0000.txt")
    assert log.read_text().count("error:") == 2
    again = finish([*words, "--json"], place, code=1)  # it is left as it is
    assert json.loads(again[: again.rindex("}") + 1])["trials"][0]["error"].startswith("environment")
    assert log.read_text().count("error:") == 2
    finish([*words, "--retry-failed"], place, code=1)
    assert log.read_text().count("error:") == 3


def test_a_dry_run_lists_and_writes_nothing(place):
    output = finish([*THREE, "--dry-run"], place)
    assert output.count("waiting") == 4  # three rows and the title
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words", [["algorithm.gama=1"], ["algorithm.gamma=0.5"], ["--on", "rey"], ["--address", "here:1"]]
)
def test_mistakes_leave_nothing_behind(place, words):
    finish([*THREE[:2], *words, *THREE[2:]], place, code=2)
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_without_ray_nothing_is_written(place, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "rl_lab.tuning.ray_cluster", raising=False)
    result = CliRunner().invoke(app, [command, *THREE[1:], "--on", "ray"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --on ray: ray is not installed")
    assert not Path("runs").exists()


def test_a_metric_that_no_trial_has_is_one_line_and_the_nearest_is_offered(place):
    Path("one.yaml").write_text(Path("three.yaml").read_text().replace("[0.8, 0.9, 0.95]", "[0.8]"))
    words = ["sweep", "one.yaml", *CONFIG, "--root", "runs"]
    told = "error: --metric: unknown metric 'collect/retrn'; did you mean 'collect/return'? (choices: collect/"
    first = finish([*words, "--metric", "collect/retrn"], place, code=2)
    assert told in first
    assert "trial_0000 done" in first
    assert states("runs/one") == ["done"]  # it ran
    again = finish([*words, "--metric", "collect/retrn"], place, code=2)
    assert again.startswith(told)
    assert "collect/return" in finish([*words, "--metric", "collect/return"], place)
