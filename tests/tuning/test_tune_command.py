"""`lab tune` as a person runs it and kills it."""

import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.tuning.sweep_process import CONFIG, fingerprints, finish, start, wait_for

TUNE = """\
base_config: conf/experiment/tiny.yaml
sweep:
  optimizers.policy.lr: {log_uniform: [1e-4, 1e-1]}
  algorithm.gamma: [0.8, 0.9]
  algorithm.width: {expression: "2 * environment.num_envs"}
seeds: [1, 2]
parallel_jobs: 1
overrides: [training.total_timesteps=512, training.eval_frequency=128, training.num_eval_episodes=3,
            training.eval_num_envs=3, training.checkpoint_frequency=64,
            buffers.rollout._target_=rl_lab.buffers.rollout.RolloutBuffer]
tune: {trials: 2, pruner: none}
"""
WORDS = ["tune", "search.yaml", *CONFIG]


@pytest.fixture(autouse=True)
def search(place):
    Path("search.yaml").write_text(TUNE)


def last_json(output):
    return json.loads(output[output.index("{") : output.rindex("}") + 1])


def test_a_search_that_is_killed_finds_what_an_undisturbed_one_finds(place):
    whole = last_json(finish([*WORDS, "--dir", "whole", "--json"], place))
    assert [trial["state"] for trial in whole["trials"]] == ["complete"] * 2
    process, rows = start([*WORDS, "--dir", "killed"], place), Path("killed/trials/trial_0001_s1/metrics.jsonl")
    assert wait_for(lambda: rows.is_file() and rows.stat().st_size > 0, process), Path("output.txt").read_text()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    killed = last_json(finish([*WORDS, "--dir", "killed", "--json"], place))
    assert killed["trials"] == whole["trials"]
    assert killed["importances"] == whole["importances"]
    assert fingerprints("killed") == fingerprints("whole")
    best = max(whole["trials"], key=lambda trial: trial["value"])
    assert whole["best"] == best
    for trial in whole["trials"]:  # the mean of two seeds, read another way
        runs = [Path(f"whole/trials/trial_{trial['number']:04d}_s{seed}/metrics.json") for seed in (1, 2)]
        values = [json.loads(run.read_text())["last"]["eval/return"] for run in runs]
        assert trial["value"] == pytest.approx(sum(values) / 2)
        assert trial["values"]["algorithm.width"] == 8
    finish([*whole["command"].split()[1:], *CONFIG[2:], "--run-dir", "best", "experiment.seed=1"], place)
    run = f"trial_{best['number']:04d}_s1"
    assert Path("best/metrics.jsonl").read_bytes() == Path(f"whole/trials/{run}/metrics.jsonl").read_bytes()


@pytest.mark.bench
def test_a_longer_search_goes_on_and_two_workers_share_it(place):
    finish([*WORDS, "--trials", "1", "--dir", "runs"], place)
    workers = [start([*WORDS, "--trials", "5", "--dir", "runs"], place, f"{name}.txt") for name in "ab"]
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0, Path("a.txt").read_text() + Path("b.txt").read_text()
    report = json.loads(Path("runs/report.json").read_text())
    assert [trial["state"] for trial in report["trials"]] == ["complete"] * 5
    assert len(list(Path("runs/trials").iterdir())) == 10
    assert "best: trial" in Path("a.txt").read_text()


@pytest.mark.bench
def test_hopeless_trials_are_stopped_and_failed_ones_passed_over(place):
    """A learning rate that is absurd fails; the pruner looks at the evaluations of runs that go on."""
    text = TUNE.replace("trials: 2, pruner: none", "trials: 6, pruner: median, startup_trials: 1, sampler: random")
    text = text.replace("seeds: [1, 2]", "seeds: [1]").replace("total_timesteps=512", "total_timesteps=4096")
    text = text.replace(
        "algorithm.gamma: [0.8, 0.9]", "environment._target_: tiny_plugin.FaultyEnv\n  environment.fault: [none, raise]"
    )
    Path("search.yaml").write_text(text)
    report = last_json(finish([*WORDS, "--dir", "runs", "--json"], place))
    for trial in report["trials"]:
        is_faulty = trial["values"]["environment.fault"] == "raise"
        assert (trial["state"] == "fail") == is_faulty
    for trial in report["trials"]:
        status = Path(f"runs/trials/trial_{trial['number']:04d}_s1/status").read_text().strip()
        assert status == {"complete": "done", "fail": "failed", "pruned": "stopped"}[trial["state"]] or (
            trial["state"] == "pruned" and status == "done"
        )


@pytest.mark.bench
def test_an_unknown_metric_is_one_line_and_nothing_is_lost(place):
    Path("search.yaml").write_text(TUNE.replace("pruner: none", "pruner: none, metric: eval/retrn"))
    output = finish([*WORDS, "--dir", "runs"], place, code=2)
    assert "did you mean 'eval/return'?" in output
    Path("search.yaml").write_text(TUNE)
    finish([*WORDS, "--dir", "runs", "--trials", "1"], place)
    assert all("resume" not in path.read_text() for path in Path("runs/trials").glob("trial_0000_s1/events.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("algorithm.gamma", "algorithm.gama"), "did you mean 'gamma'?"),
        (("log_uniform: [1e-4, 1e-1]", "normal: [0, 1]"), "normal cannot be tuned"),
        (("trials: 2", "trails: 2"), "did you mean 'trials'?"),
        (
            ("pruner: none", "pruner: none, storage: 'sqlite:///nowhere/study.db'"),
            "tune.storage: cannot open sqlite:///nowhere/study.db: unable to open database file",
        ),
    ],
)
def test_mistakes_are_one_line(place, change, message):
    Path("search.yaml").write_text(TUNE.replace(*change))
    (line,) = finish([*WORDS, "--dir", "runs"], place, code=2).strip().splitlines()
    assert message in line
    assert not Path("runs").exists()


def test_a_setting_that_no_run_can_have_fails_and_holds_up_no_other(place):
    text = TUNE.replace("seeds: [1, 2]", "seeds: [1]").replace("pruner: none", "pruner: none, sampler: random")
    text = text.replace("2 * environment.num_envs", "1 // (algorithm.gamma - 0.8)").replace("trials: 2", "trials: 4")
    Path("search.yaml").write_text(text.replace("total_timesteps=512", "total_timesteps=128"))
    output = finish([*WORDS, "--dir", "runs"], place)
    report = json.loads(Path("runs/report.json").read_text())
    ends = {trial["values"]["algorithm.gamma"]: trial["state"] for trial in report["trials"]}
    assert ends == {0.8: "fail", 0.9: "complete"}
    failed = [trial for trial in report["trials"] if trial["state"] == "fail"]
    assert all("cannot be computed" in trial["why"] for trial in failed)
    assert output.count("fail: sweep.algorithm.width") == len(failed)
    assert "trial 0" not in finish([*WORDS, "--dir", "runs"], place).partition("best:")[0]  # nothing is left to do


def test_a_run_without_the_metric_fails_unless_none_has_it(tmp_path):
    from contextlib import ExitStack

    from rl_lab.core.errors import ConfigError
    from rl_lab.tuning.objective import GrowingMetric
    from rl_lab.tuning.optuna_study import Study
    from rl_lab.tuning.space import Distribution
    from rl_lab.tuning.sweep_file import TuneConfig
    from rl_lab.tuning.tuner import Attempt, Tuner

    options, space = TuneConfig(pruner="none").model_dump(), {"a": Distribution("uniform", low=0.0, high=1.0)}
    study = Study(tmp_path, space, options, 0)
    tuner = Tuner(None, study, space, None, [], options)
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "train/loss": 2.0}\n')
    attempts = [Attempt(study.ask(), [], {0: GrowingMetric(file, "eval/return")}, ExitStack()) for _ in range(2)]
    with pytest.raises(ConfigError, match="unknown metric 'eval/return'"):
        tuner._measure(attempts[0])
    study.tell(1, "complete", 3.0)
    assert tuner._measure(attempts[0]) is None
    assert attempts[0].ending == "fail"
    study.tell(0, "fail", None, attempts[0].why)
    assert "unknown metric" in study.trials()[0].why
