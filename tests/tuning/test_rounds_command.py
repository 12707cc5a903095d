"""`lab tune` in rounds, as a person runs it and kills it: populations and successive halving."""

import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.jsonl import last_row
from tests.tuning.sweep_process import CONFIG, fingerprints, finish, start, wait_for

SEARCH = """\
base_config: conf/experiment/tiny.yaml
sweep:
  optimizers.policy.lr: {log_uniform: [1e-3, 1]}
  algorithm.gamma: [0.8, 0.9]
  experiment.seed: {int: [1, 100]}
  algorithm.width: {expression: "round(10 * algorithm.gamma)"}
parallel_jobs: 2
overrides: [training.total_timesteps=256, training.eval_frequency=128, training.num_eval_episodes=4,
            training.eval_num_envs=4, training.checkpoint_frequency=64,
            buffers.rollout._target_=rl_lab.buffers.rollout.RolloutBuffer]
tune: {trials: 3, KIND}
"""
POPULATION = "population: {every_steps: 128, share: 0.34}"
HALVING = "halving: {first_steps: 128, keep: 0.5}"
WORDS = ["tune", "search.yaml", *CONFIG]


def write(kind, **changes):
    text = SEARCH.replace("KIND", kind)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    Path("search.yaml").write_text(text)


def rows(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def without_paths(report):
    return {key: value for key, value in report.items() if key not in ("search", "command")}


def read(directory, file="report.json"):
    return json.loads(Path(directory, file).read_text())


def trials(directory):
    return list(Path(directory, "trials").iterdir()) if Path(directory, "trials").is_dir() else []


@pytest.mark.parametrize("kind", [POPULATION, pytest.param(HALVING, marks=pytest.mark.bench)], ids=["pbt", "halving"])
def test_a_search_in_rounds_that_is_killed_is_the_one_that_was_not(place, kind):
    write(kind)
    output = finish([*WORDS, "--dir", "whole"], place)
    process, file = start([*WORDS, "--dir", "killed", "--jobs", "1"], place), Path("killed/rounds.json")

    def is_in_the_second_round():
        if not file.is_file() or len(json.loads(file.read_text())["rounds"]) < 2:
            return False
        return any((last_row(run / "metrics.jsonl") or {"step": 0})["step"] > 128 for run in trials("killed"))

    assert wait_for(is_in_the_second_round, process), Path("output.txt").read_text()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    finish([*WORDS, "--dir", "killed"], place)
    assert read("killed", "rounds.json") == read("whole", "rounds.json")
    assert without_paths(read("killed")) == without_paths(read("whole"))
    assert fingerprints("killed") == fingerprints("whole")
    for run in trials("killed"):
        steps = [(row["step"], "eval/return" in row) for row in rows(run)]
        assert steps == sorted({*steps}), run.name  # every row once
    check_population(output) if kind is POPULATION else check_halving()


def check_population(output):
    """The worst have become copies of the best, and say so."""
    rounds, num_copies = read("whole", "rounds.json")["rounds"], 0
    assert [each["until"] for each in rounds] == [128, None]
    for now, after in pairwise(rounds):
        for score, member, other in zip(now["scores"], now["members"], after["members"], strict=True):
            if member["run"] == other["run"]:
                continue
            num_copies += 1
            donor = next(each for each in now["members"] if each["run"] == other["parent"])
            assert score == min(now["scores"])
            assert now["scores"][now["members"].index(donor)] == max(now["scores"])
            check_copy(donor, other, now["until"])
            assert f"copies: {other['run']} of {donor['run']}" in output
    assert num_copies, "nobody was replaced: the test shows nothing"
    report, newest = read("whole"), rounds[-1]
    final = dict(zip((member["run"] for member in newest["members"]), newest["scores"], strict=True))
    assert report["best"]["value"] == max(final.values())
    assert {row["run"]: row["state"] for row in report["trials"]} == {
        run.name: "complete" if run.name in final else "replaced" for run in trials("whole")
    }
    assert report["schedule"][0]["from_steps"] == 0
    assert report["command"].endswith(report["best"]["run"])


def check_copy(donor, copy, until):
    """A copy has what its donor had at the pause, and other values since."""
    assert copy["values"] != donor["values"]
    assert copy["values"]["algorithm.width"] == round(10 * copy["values"]["algorithm.gamma"])
    assert 1e-3 <= copy["values"]["optimizers.policy.lr"] <= 1
    assert copy["values"]["experiment.seed"] == donor["values"]["experiment.seed"]  # cannot change on the way
    own, other = (rows(Path("whole/trials") / each["run"]) for each in (copy, donor))
    assert [row for row in own if row["step"] <= until] == [row for row in other if row["step"] <= until]
    run = Path("whole/trials") / copy["run"]
    state = CheckpointStore(run / "checkpoints").load_newest().state
    assert [group["lr"] for group in state["optimizers"]["policy"]["param_groups"]] == [
        copy["values"]["optimizers.policy.lr"]
    ]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (fork,) = [event for event in events if event["kind"] == "resume" and event["mode"] == "fork"]
    assert fork["checkpoint"] == str(Path(f"whole/trials/{donor['run']}/checkpoints/{copy['checkpoint']}").absolute())
    assert any(change.startswith("optimizers.policy.lr: ") for change in fork["changes"])


def check_halving():
    """Only the best have gone on."""
    rounds = read("whole", "rounds.json")["rounds"]
    assert [(each["until"], len(each["members"])) for each in rounds] == [(128, 3), (None, 2)]
    scores = dict(zip((member["run"] for member in rounds[0]["members"]), rounds[0]["scores"], strict=True))
    (left,) = scores.keys() - {member["run"] for member in rounds[1]["members"]}
    assert scores[left] == min(scores.values())
    assert {run.name: rows(run)[-1]["step"] for run in trials("whole")} == {
        run: 128 if run == left else 256 for run in scores
    }
    assert [row["state"] for row in read("whole")["trials"] if row["run"] == left] == ["pruned"]


@pytest.mark.bench
def test_a_member_that_fails_is_replaced(place):
    fault = "environment._target_: tiny_plugin.FaultyEnv\n  environment.fault: [none, raise]\n  environment.at: 20"
    write(POPULATION, **{"algorithm.gamma: [0.8, 0.9]": f"algorithm.gamma: [0.8, 0.9]\n  {fault}"})
    output = finish([*WORDS, "--dir", "runs"], place)
    rounds = json.loads(Path("runs/rounds.json").read_text())["rounds"]
    failed = [member["run"] for member, score in zip(rounds[0]["members"], rounds[0]["scores"], strict=True)
              if score is None]  # fmt: skip
    assert failed == [
        member["run"] for member in rounds[0]["members"] if member["values"]["environment.fault"] == "raise"
    ]
    assert 0 < len(failed) < 3, "the test shows nothing"
    for run in failed:
        assert f"{run} failed: " in output
        assert not any(member["run"] == run for member in rounds[1]["members"])
    assert all(score is not None for score in rounds[-1]["scores"])
    assert {row["state"] for row in read("runs")["trials"]} >= {"complete", "fail"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("every_steps: 128", "every_steps: 256"), "tune.population.every_steps: 256 env steps are not less than"),
        (("every_steps: 128", "evry_steps: 128"), "did you mean 'every_steps'?"),
        (("parallel_jobs: 2", "seeds: [1, 2]"), "seeds: every member of tune.population is one run"),
        (("share: 0.34", "share: 0.7"), "tune.population.share"),
        (("trials: 3", "trials: 1"), "tune.trials: tune.population compares 2 members or more, not 1"),
        (("trials: 3", "trials: 0"), "tune.trials"),
        (("trials: 3", "trials: 3, pruner: median"), "tune.pruner: does not go with tune.population"),
        (("trials: 3", "trials: 3, halving: {first_steps: 9}"), "tune.halving: does not go with tune.population"),
        (
            ("overrides: [", "overrides: [transport.samplers=local, "),
            "transport.samplers: members of tune.population pause at an env step",
        ),
        (
            ("algorithm.width: ", "components.actor.out_features: "),
            "sweep.components.actor.out_features: follows a key",
        ),
    ],
)
def test_mistakes_are_one_line(place, change, message):
    write(POPULATION, **{"experiment.seed: {int: [1, 100]}": "experiment.num_seeds: 1"}, **dict([change]))
    result = CliRunner().invoke(app, [*WORDS, "--dir", "runs"])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert message in line
    assert not Path("runs").exists()


@pytest.mark.bench
def test_what_a_search_has_begun_with_it_goes_on_with(place):
    write(POPULATION, **{"trials: 3": "trials: 2, metric: eval/retrn"})
    line = finish([*WORDS, "--dir", "runs"], place, code=2).splitlines()[-1]
    assert "did you mean 'eval/return'?" in line  # nothing is lost: both members are at their first pause
    before = fingerprints("runs")
    write(POPULATION, **{"trials: 3": "trials: 2, metric: eval/retrn", "every_steps: 128": "every_steps: 64"})
    assert "tune.population.every_steps is 64 now, but was 128" in finish([*WORDS, "--dir", "runs"], place, code=2)
    Path("runs/rounds.json").write_text("{")
    write(POPULATION, **{"trials: 3": "trials: 2, metric: eval/retrn"})
    assert "rounds.json is damaged" in finish([*WORDS, "--dir", "runs"], place, code=1)
    assert fingerprints("runs") == before
