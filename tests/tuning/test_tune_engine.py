"""Searches that Ray Tune drives, killed and gone on with: `pytest -m ray`, with `ray[tune]`."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from rl_lab.cli.tune import _check_engine
from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.targets import Targets
from rl_lab.core.errors import ConfigError, UsageError
from rl_lab.tuning.sweep_file import read_sweep
from rl_lab.tuning.trial_configs import open_configs
from rl_lab.tuning.tune_engine import begun, check_engine, settings_of, steps_per_report
from tests.config.tiny import PLUGIN
from tests.tuning.sweep_process import CONFIG, LAB_WORDS, check_rows, finish, lab, rows, wait_for
from tests.tuning.test_tune_command import last_json

ENGINE = ["--on", "ray", "--engine", "tune"]
WORDS = ["tune", "search.yaml", *CONFIG, "--dir", "found", "--json", *ENGINE]
SEARCH = """\
base_config: conf/experiment/tiny.yaml
sweep:
  optimizers.policy.lr: {log_uniform: [1e-4, 1e-1]}
  algorithm.gamma: [0.8, 0.9]
  algorithm.width: {expression: "2 * environment.num_envs"}
  experiment.seed: {int: [1, 100]}
parallel_jobs: 2
overrides: [training.total_timesteps=512, training.eval_frequency=128, training.num_eval_episodes=3,
            training.eval_num_envs=3, training.checkpoint_frequency=64,
            buffers.rollout._target_=rl_lab.buffers.rollout.RolloutBuffer]
tune: OPTIONS
"""


def write(options, extra=""):
    Path("search.yaml").write_text(SEARCH.replace("OPTIONS", options) + extra)


def checkpoints():
    return list(Path("found/.ray_tune").glob("*/checkpoint_*/run"))


def killed():
    """Kill the driver once some trials were saved, give the command again, and return its report."""
    process = subprocess.Popen([*LAB_WORDS, *WORDS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(checkpoints()) >= 3 or process.poll() is not None)
    assert process.poll() is None, "it was too fast: the test shows nothing"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not any(Path("found/trials").iterdir())
    return last_json(lab(*WORDS))


def check_runs(report, count):
    """Every trial is there once, a run like any other, with the value that the report names."""
    assert [trial["run"] for trial in report["trials"]] == [f"trial_{number:04d}" for number in range(count)]
    check_rows("found")
    for trial in report["trials"]:
        run = Path("found/trials", trial["run"])
        last = [row["eval/return"] for row in rows(run) if "eval/return" in row][-1]
        if trial["state"] == "complete":
            assert (rows(run)[-1]["step"], trial["value"]) == (512, last)
    listed = json.loads(lab("runs", "list", "--root", "found/trials", "--json"))
    assert len(listed) == count
    best = max((trial for trial in report["trials"] if trial["value"] is not None), key=lambda trial: trial["value"])
    assert report["best"] == best


@pytest.mark.ray
def test_asha_by_tune_is_killed_and_tries_every_setting_once(place):
    """What a trial did before it was ended, or killed, is what its setting comes to by itself."""
    pytest.importorskip("ray.tune", exc_type=ImportError)
    write("{trials: 5, pruner: halving, sampler: tpe}")
    report = killed()
    states = [trial["state"] for trial in report["trials"]]
    assert {*states} == {"complete", "pruned"}
    check_runs(report, 5)
    for trial in report["trials"]:
        words = [f"++{key}={value}" for key, value in trial["values"].items()]
        base = ["train", "+experiment=base", "--config-dir", "found/configs", *CONFIG[2:]]
        finish([*base, *words, "--run-dir", f"alone/{trial['run']}"], place)
        mine, alone = (Path(each, trial["run"], "metrics.jsonl").read_bytes() for each in ("found/trials", "alone"))
        assert alone.startswith(mine)
        assert (mine == alone) == (trial["state"] == "complete")
    assert last_json(lab(*WORDS))["trials"] == report["trials"]  # all is done: nothing begins again


@pytest.mark.ray
def test_a_population_by_tune_is_killed_and_goes_on_from_exact_states(place):
    pytest.importorskip("ray.tune", exc_type=ImportError)
    write("{trials: 4, population: {every_steps: 128, share: 0.5}}")
    report = killed()
    assert [trial["state"] for trial in report["trials"]] == ["complete"] * 4
    check_runs(report, 4)
    runs = sorted(Path("found/trials").iterdir())
    assert any('"mode": "fork"' in (run / "events.jsonl").read_text() for run in runs)
    for trial, run in zip(report["trials"], runs, strict=True):  # what cannot change came with the copied agent
        config = (run / "config.yaml").read_text()
        assert f"  seed: {trial['values']['experiment.seed']}\n" in config
        assert f"lr: {trial['values']['optimizers.policy.lr']}" in config


def checked():
    """Read the file as `lab tune --engine tune` does, and return what it finds out before anything is written."""
    file = read_sweep("search.yaml")
    with open_configs(file, Targets(AllowList(load_plugins([PLUGIN]))), "conf") as configs:
        check_engine(file, configs, file.tune)
        return steps_per_report(configs, file.tune)


@pytest.mark.parametrize(
    ("options", "extra", "message"),
    [
        ("{trials: 2}", "", r"tune.pruner: 'median' is not for --engine tune \(choices: halving, none\)"),
        (
            "{trials: 2, pruner: none, score: best}",
            "",
            r"tune.score: 'best' is not for --engine tune \(choices: last\)",
        ),
        ("{trials: 2, pruner: none}", "seeds: [1, 2]\n", "seeds: with --engine tune every trial is one run"),
    ],
)
def test_what_tune_is_not_asked_to_do_is_one_line(place, options, extra, message):
    write(options, extra)
    Path("search.yaml").write_text(Path("search.yaml").read_text().replace("  experiment.seed: {int: [1, 100]}\n", ""))
    with pytest.raises(ConfigError, match=f"^{message}"):
        checked()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tune", "local"), "--engine tune goes with --on ray"),
        (("tun", "ray"), r"unknown --engine 'tun'; did you mean 'tune'\? \(choices: lab, tune\)"),
    ],
)
def test_an_engine_that_is_not_there_is_one_line(words, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        _check_engine(*words)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ("{trials: 2, pruner: none}", 128),
        ("{trials: 2, population: {every_steps: 64}}", 64),
        ("{trials: 2, halving: {first_steps: 32}}", 32),
    ],
)
def test_reports_come_with_evaluations_or_rounds(place, options, steps):
    write(options)
    assert checked() == steps


def test_a_search_without_evaluations_needs_a_word(place):
    write("{trials: 2, pruner: none}")
    Path("search.yaml").write_text(Path("search.yaml").read_text().replace("eval_frequency=128", "eval_frequency=null"))
    with pytest.raises(ConfigError, match=r"^training.eval_frequency: --engine tune compares"):
        checked()


def test_trials_are_numbered_as_they_began_in_whatever_order_they_are_restored():
    names = ["E_c_3_lr=1_2026-11-19_21-10-16", "E_a_2_lr=9_2026-11-19_21-10-15", "E_b_1_lr=5_2026-11-18_23-59-59"]
    assert sorted((f"/somewhere/{name}" for name in names), key=begun) == [f"/somewhere/{name}" for name in names[::-1]]


def test_what_a_searcher_chose_becomes_options(place):
    """Choices are chosen by their place, and expressions are computed from what was chosen."""
    write("{trials: 2, pruner: none}")
    file = read_sweep("search.yaml")
    known = {"environment.num_envs": 4}
    found = settings_of(file.space, known, {"optimizers.policy.lr": 0.01, "algorithm.gamma": 1, "experiment.seed": 7})
    assert found == {
        "optimizers.policy.lr": 0.01,
        "algorithm.gamma": 0.9,
        "algorithm.width": 8,
        "experiment.seed": 7,
    }
    assert settings_of(file.space, known, {"member": {"a": 1}}) == {"a": 1}
