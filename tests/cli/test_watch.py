"""`lab runs watch`: what is wrong with runs, seen from another process."""

import json
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.config.watching import Watched, read_rules
from rl_lab.tracking.run_directory import RunDirectory
from tests.cli.test_alerts import PATIENT, PLUGIN, SCORING, Webhook, rule
from tests.config.tiny import PLUGIN as TINY
from tests.config.tiny import write_tree

RULES = "alerts: {{channels: [file], file: told.jsonl, timeout_s: 60.0, rules: {{{}}}}}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose own rule is not content at its end."""
    place = tmp_path_factory.mktemp("trained")
    high = rule("high", kind="above", metric="train/score", value=0.5, after=200)
    words = ["--config-dir", str(write_tree(place / "conf")), "--plugin", TINY, "--plugin", PLUGIN]
    result = CliRunner().invoke(
        app, ["train", "+experiment=tiny", SCORING, high, "--run-dir", str(place / "tiny"), *words]
    )
    assert result.exit_code == 0, result.output
    return place / "tiny"


@pytest.fixture
def finished(trained):
    return RunDirectory.open(shutil.copytree(trained, "experiments/tiny"))


def beat(run, silent_s):
    """Let a run have given its last sign of life so long ago."""
    run.set_status("running")
    run.heartbeat_file.write_text(json.dumps({"time": time.time() - silent_s, "step": 128}))


def test_a_run_that_was_killed_is_found_and_one_that_lives_is_not(finished, lab):
    result = lab("runs", "watch", "--once")
    assert (result.exit_code, result.output) == (0, "")  # what is done is left in peace
    beat(finished, 100)
    with finished.lock():
        assert lab("runs", "watch", "status=running", "--once").exit_code == 1  # its own rule is still not content
        assert "no sign" not in lab("runs", "watch", "--once").stdout
    result = lab("runs", "watch", "--once")
    assert result.exit_code == 1
    dead = f"{finished.path.name}: heartbeat: its process is gone, without a word (step 256)"
    assert [line[9:] for line in result.stdout.splitlines()] == [
        f"{finished.path.name}: high: train/score is 1, above 0.5 (step 256)",
        dead,
    ]


def test_a_run_that_hangs_is_told_once_until_it_moves(finished):
    beat(finished, 10_000)
    with finished.lock():
        watched = Watched(finished.path)
        now = time.time()
        assert [alert.rule for alert in watched.look(now)] == ["high", "heartbeat"]
        assert watched.look(now + 60) == []
        beat(finished, 0)
        assert watched.look(now) == []
        (alert,) = watched.look(now + 1000)
    assert alert.text.startswith("no sign of life for ")


def test_the_last_sign_of_life_may_be_its_beginning(finished):
    beat(finished, 0)
    finished.heartbeat_file.unlink()
    with finished.lock():
        assert [alert.rule for alert in Watched(finished.path).look(time.time() + 1000)] == ["high", "heartbeat"]


def test_ones_own_rules_are_told_where_they_say(finished, lab):
    Path("rules.yaml").write_text(RULES.format("low: {kind: below, metric: train/score, value: 2.0, after: 128}"))
    result = lab("runs", "watch", finished.id, "--once", "--json", "--rules", "rules.yaml")
    assert result.exit_code == 1
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted((alert["rule"], alert["step"]) for alert in printed) == [("high", 256), ("low", 128)]
    (told,) = [json.loads(line) for line in Path("told.jsonl").read_text().splitlines()]  # `high` told the run itself
    assert (told["rule"], told["run"]) == ("low", finished.path.name)


def test_only_new_rows_are_looked_at_and_a_run_that_went_back_is_begun_anew(finished):
    Path("rules.yaml").write_text("rules: {low: {kind: below, metric: train/score, value: 2.0}}")
    watched = Watched(finished.path, read_rules(Path("rules.yaml")))
    assert [(alert.rule, alert.step) for alert in watched.look(time.time())] == [("low", 64), ("high", 256)]
    lines = finished.metrics_file.read_text().splitlines(keepends=True)
    with finished.metrics_file.open("a") as file:
        file.write(lines[-1].replace('"train/score": 1.0', '"train/score": 3.0').replace('"step": 256', '"step": 320'))
    assert watched.look(time.time()) == []
    with finished.metrics_file.open("a") as file:
        file.write(lines[-1].replace('"step": 256', '"step": 384'))
        file.write(lines[-1][:20])  # half a row
    assert [(alert.rule, alert.step) for alert in watched.look(time.time())] == [("low", 384)]
    finished.metrics_file.write_text("".join(lines[:2]))
    assert [(alert.rule, alert.step) for alert in watched.look(time.time())] == [("low", 64)]
    assert watched.failures() == []  # all is told before the directory is left


def test_a_run_that_went_back_and_has_grown_since_is_begun_anew(finished):
    Path("rules.yaml").write_text(RULES.format("low: {kind: below, metric: train/score, value: 2.0}"))
    watched = Watched(finished.path, read_rules(Path("rules.yaml")))
    assert len(watched.look(time.time())) == 2
    lines = finished.metrics_file.read_text().splitlines(keepends=True)
    other = lines[2].replace('"train/score": 1.0', '"train/score": 1.5')
    assert watched.look(time.time()) == []  # nothing is new
    finished.metrics_file.write_text("".join([*lines[:2], other, *lines[2:]]))
    assert [(alert.rule, alert.step) for alert in watched.look(time.time())] == [("low", 64), ("high", 256)]
    same_size = lines[-1].replace('"train/score": 1.0', '"train/score": 0.0')
    finished.metrics_file.write_text("".join([*lines[:2], other, lines[2], same_size]))
    assert [(alert.rule, alert.step) for alert in watched.look(time.time())] == [("low", 64)]
    assert watched.failures() == []


def test_a_dead_run_is_told_to_its_webhook(train, lab):
    server = Webhook()
    try:
        options = rule("dead", kind="heartbeat", silent_s=5, channels=["webhook"])
        assert train("--run-dir", "run", options, f"alerts.webhook='{server.url}'", PATIENT).exit_code == 0
        beat(RunDirectory.open("run"), 0)
        assert lab("runs", "watch", "run", "--once").exit_code == 1
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
    ((_, _, content),) = server.posts
    assert (content["rule"], content["detail"]) == ("dead", "its process is gone, without a word")


def test_a_webhook_that_is_not_known_here_is_said(train, lab, monkeypatch):
    monkeypatch.setenv("MY_HOOK", "http://127.0.0.1:1/")
    options = rule("dead", kind="heartbeat", channels=["webhook"])
    assert train("--run-dir", "run", options, "alerts.webhook=env:MY_HOOK", PATIENT).exit_code == 0
    monkeypatch.delenv("MY_HOOK")
    beat(RunDirectory.open("run"), 0)
    result = lab("runs", "watch", "run", "--once")
    assert result.exit_code == 1
    assert "an alert was not told: webhook: it is not known here where that is" in result.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- a", "--rules rules.yaml: expected a block `alerts` with `rules`"),
        ("a: [", "--rules rules.yaml: while parsing"),
        ("rules: {r: {kind: nan, respond: stop}}", "alerts.rules.r.respond: only the run itself can respond"),
        ("rules: {r: {kind: heartbeat, silent: 3}}", "unknown key in alerts.rules.r 'silent'; did you mean 'silent_s'"),
        ("ruls: {}", "unknown key in alerts 'ruls'; did you mean 'rules'?"),
    ],
)
def test_wrong_rules_are_one_line(lab, fails, text, line):
    Path("rules.yaml").write_text(text)
    assert line in fails(lab("runs", "watch", "--once", "--rules", "rules.yaml"), 2)


def test_a_file_that_is_not_there(lab, fails):
    assert "--rules no.yaml: No such file" in fails(lab("runs", "watch", "--once", "--rules", "no.yaml"), 2)
