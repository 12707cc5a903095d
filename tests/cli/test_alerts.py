"""Alerts of real runs: each kind, each channel, each response, and that nothing of it is there where nothing fires."""

import gc
import json
import math
import re
import socket
import stat
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rl_lab.tracking import perf
from rl_lab.tracking.alarm import Alert
from rl_lab.tracking.alert_channels import Courier, WebhookChannel
from rl_lab.tracking.alert_rules import FINE, Nan, Stalled
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.tracking.run_directory import RunDirectory

PLUGIN = str(Path(__file__).parent / "alert_plugin.py")
SCORING = "workflow._target_=alert_plugin.Scoring"
PATIENT = "alerts.timeout_s=60.0"  # a busy machine is no reason to fail
TAINTED = "buffers.rollout._target_=alert_plugin.TaintedBuffer"


def rule(name, **options):
    return f"+alerts.rules.{name}={json.dumps(options).replace(chr(34), '')}"


def events(run, *kinds):
    found = [json.loads(line) for line in Path(run, "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["kind"] in kinds]


def rows(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run(train):
    def begin(*overrides, at="run", code=0):
        result = train("--run-dir", at, "--plugin", PLUGIN, *overrides)
        assert result.exit_code == code, result.output
        return result

    return begin


class Clock:
    """A clock that only moves when somebody takes time."""

    now = 0.0

    def __call__(self):
        return self.now


KINDS = {  # rows are written every 64 of 256 steps, of two updates each; rewards are 1
    "above": ({"metric": "train/score", "value": 0.5, "after": 100}, 128, "train/score is 1, above 0.5"),
    "below": ({"metric": "train/score", "value": 1.5}, 64, "train/score is 1, below 1.5"),
    "stalled": ({"metric": "train/score", "steps": 128}, 192, "train/score has not improved for 128 steps (best 1"),
    "memory": ({"free_mb": 1e15}, 64, "MB of memory are free, less than 1,000,000,000,000,000"),
    "disk": ({"free_mb": 1e15}, 64, "MB of the disk are free, less than 1,000,000,000,000,000"),
}


def test_every_kind_is_told_once_at_its_step(run):
    rules = [rule(f"a_{name}", kind=name, **options) for name, (options, _, _) in KINDS.items()]
    misspelt = rule("typo", kind="below", metric="train/scor", value=0)
    taken = rule("taken", kind="memory", free_mb=0, used_mb=0.001)
    result = run(SCORING, *rules, taken, misspelt, "logging.terminal=true")
    told = {event["rule"]: event for event in events("run", "alert")}
    assert len(told) == len(events("run", "alert")) == len(rules) + 1
    assert "MB of memory, more than 0" in told["taken"]["text"]
    for name, (_, step, text) in KINDS.items():
        alert = told[f"a_{name}"]
        assert (alert["step"], alert["rule_kind"]) == (step, name)
        assert text in alert["text"]
        assert f"alert: {alert['message']}" in result.stdout
    (idle,) = events("run", "alert_idle")
    never = "alert 'typo' never had anything to look at: unknown metric 'train/scor'; did you mean 'train/score'?"
    assert idle["message"].startswith(never)


def test_slow_is_told_by_the_clock(run, monkeypatch):
    monkeypatch.setattr(perf, "perf_counter", Clock())
    run("environment._target_=alert_plugin.Dragging", "logging.every_steps=32", rule("r", kind="slow"))
    (alert,) = events("run", "alert")  # eight vector steps of four environments per row
    assert (alert["step"], alert["text"]) == (256, "4.0 env steps/s, usually 400.0")


def test_nan_in_what_is_learned_is_told_before_the_run_fails(run):
    Path("all.jsonl").write_text('{"run": "another"}\n')  # runs may share a file
    tell = [rule("r", kind="nan"), "alerts.channels=[log,file]", "alerts.file=all.jsonl"]
    run(TAINTED, "buffers.rollout.bad=[3]", *tell, PATIENT, code=1)
    alert, failed = events("run", "alert", "failed")
    assert alert["text"].startswith("train/loss is nan after update 3 (env step 96); last good checkpoint: ")
    assert failed["reason"] == alert["text"]
    first, second = map(json.loads, Path("all.jsonl").read_text().splitlines())
    assert (first["run"], second["run"], second["text"]) == ("another", "run", alert["text"])
    assert Path("run/status").read_text() == "failed\n"


def test_nan_that_a_run_goes_on_with_is_told_only_where_it_is_asked_for():
    row = {"step": 64, "updates": 2, "train/loss": 1.0, "collect/return": math.nan, "eval/return": math.nan}
    assert Nan().look({**row, "perf/rate": math.inf}) == FINE
    assert Nan().look({**row, "train/loss": math.inf}) == "train/loss is inf"
    assert Nan("eval/*").look(row) == "eval/return is nan"
    assert Nan().look({"step": 64, "perf/rate": math.nan}) is None


def test_a_stall_is_seen_through_values_that_are_none():
    stalled = Stalled("eval/return", 100)
    found = [(0, math.nan), (50, 2.0), (100, math.inf), (140, 1.0), (150, math.nan), (150, 1.5)]
    said = [stalled.look({"step": step, "eval/return": value}) for step, value in found]
    stall = "eval/return has not improved for 100 steps (best 2, now 1.5)"
    assert said == [None, FINE, None, FINE, None, stall]


def test_a_run_whose_alerts_never_fire_has_the_bits_of_one_without(run):
    run(at="without")
    quiet = [
        rule("a", kind="above", metric="train/loss", value=1e9, respond="stop"),
        rule("b", kind="nan", respond="roll_back"),
        rule("c", kind="stalled", metric="train/loss", steps=1000, respond="lower_rate"),
        rule("d", kind="disk", free_mb=0),
        rule("e", kind="slow", share=0.0),
    ]
    run(*quiet, at="with")
    assert events("with", "alert", "alert_idle") == []
    assert Path("with/metrics.jsonl").read_bytes() == Path("without/metrics.jsonl").read_bytes()
    assert fingerprint(RunDirectory.open("with")) == fingerprint(RunDirectory.open("without"))


# Responses


def test_stop_saves_and_leaves_with_the_reason_and_a_resume_goes_on(run, lab):
    result = run(SCORING, rule("r", kind="above", metric="train/score", value=0.5, respond="stop"), code=1)
    line = "stopped by alert r: train/score is 1, above 0.5 (step 64); continue with `lab resume`"
    assert result.stderr.strip() == line
    assert Path("run/status").read_text() == "stopped\n"
    assert events("run", "stopped")[0]["rule"] == "r"
    assert lab("resume", "run", "--plugin", PLUGIN).exit_code == 0  # it is known already that the score is above
    assert rows("run")[-1]["step"] == 256
    run(SCORING, at="other")
    assert fingerprint(RunDirectory.open("run")) == fingerprint(RunDirectory.open("other"))


def test_a_fork_knows_nothing_of_earlier_alerts(run, lab):
    run(SCORING, rule("r", kind="above", metric="train/score", value=0.5, respond="stop"), code=1)
    result = lab("resume", "run", "--mode", "fork", "--plugin", PLUGIN)
    assert result.exit_code == 1, result.output
    assert "stopped by alert r: train/score is 1, above 0.5 (step 128)" in result.stderr


def test_the_learning_rate_is_lowered_a_bounded_number_of_times(run):
    lower = rule("r", kind="stalled", metric="train/score", steps=64, respond="lower_rate", factor=0.1, times=2)
    run(SCORING, lower)
    assert [event["step"] for event in events("run", "alert")] == [128, 192, 256]
    first, second = events("run", "lowered_rate")
    assert first["message"] == "r: learning rates policy 0.0003 -> 3e-05"
    assert second["message"] == "r: learning rates policy 3e-05 -> 3e-06"
    assert [row["train/rate"] for row in rows("run")] == pytest.approx([3e-4, 3e-4, 3e-5, 3e-6])


def test_a_lowered_rate_survives_interruptions_to_the_bit(run, lab):
    lower = rule("r", kind="stalled", metric="train/score", steps=64, respond="lower_rate", times=5)
    run(SCORING, lower, at="whole")
    mortal = ["environment._target_=alert_plugin.Mortal", "environment.fault=sigterm", "environment.at=32"]
    run(SCORING, lower, *mortal, at="cut", code=143)
    assert resume_until_done(lab, "cut") >= 1
    assert Path("cut/metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes()
    assert fingerprint(RunDirectory.open("cut")) == fingerprint(RunDirectory.open("whole"))


def resume_until_done(lab, path):
    """Resume a run that interrupts itself until it is done, and return how often."""
    for count in range(1, 20):
        result = lab("resume", path, "--plugin", PLUGIN)
        if result.exit_code == 0:
            return count
        assert result.exit_code == 143, result.output
    raise AssertionError("it never ends")


def test_a_run_goes_back_and_passes_over_the_bad_batch(run):
    result = run(SCORING, TAINTED, "buffers.rollout.bad=[6]", rule("r", kind="nan", respond="roll_back"))
    assert "train/loss is nan" not in result.stderr
    alert, back = events("run", "alert", "rolled_back")
    assert alert["text"].startswith("train/loss is nan, train/score is nan after update 6 (env step 192)")
    assert (back["step"], back["updates"], back["skips"]) == (192, 5, 1)  # it was saved between collect and update 6
    assert back["message"] == "r: goes on from checkpoint 000003, without the next 1 updates (1 of 3 times)"
    found = rows("run")
    assert [(row["step"], row["updates"]) for row in found] == [(64, 2), (128, 4), (192, 5), (256, 7)]
    assert all(math.isfinite(value) for row in found for value in row.values() if isinstance(value, float))
    assert Path("run/status").read_text() == "done\n"


@pytest.mark.parametrize("command", ["train", "resume"])
def test_what_a_run_was_is_gone_before_it_is_made_anew(run, lab, command):
    lonely = "workflow._target_=alert_plugin.Lonely"
    bad = [lonely, TAINTED, "buffers.rollout.bad=[6]", rule("r", kind="nan", respond="roll_back")]
    gc.collect()  # a process of its own begins without others
    if command == "train":
        run(*bad)
    else:
        run(*bad, "--until", "64")
        gc.collect()
        assert lab("resume", "run", "--plugin", PLUGIN).exit_code == 0
    assert len(events("run", "rolled_back")) == 1
    made = [row["train/made"] for row in rows("run")]
    assert made[-1] == made[-2] + 1 == made[0] + (1 if command == "train" else 2)


def test_a_run_that_went_back_and_was_interrupted_is_the_same_run(run, lab):
    bad = [SCORING, TAINTED, "buffers.rollout.bad=[6,7,12]", "training.total_timesteps=512"]
    back = rule("r", kind="nan", respond="roll_back", factor=0.5)
    run(*bad, back, at="whole")
    gone = [(event["updates"], event["skips"], event["times"]) for event in events("whole", "rolled_back")]
    assert gone == [(5, 2, 2), (9, 1, 3)]  # batch 6, then 6 and 7, from the same checkpoint; what came between is cut
    mortal = ["environment._target_=alert_plugin.Mortal", "environment.fault=sigterm", "environment.at=40"]
    run(*bad, back, *mortal, at="cut", code=143)
    assert resume_until_done(lab, "cut") >= 2
    assert Path("cut/metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes()
    assert fingerprint(RunDirectory.open("cut")) == fingerprint(RunDirectory.open("whole"))
    assert rows("cut")[-1]["train/rate"] == pytest.approx(3e-4 * 0.5**3)


def test_it_does_not_go_back_for_ever(run):
    bad = "buffers.rollout.bad=" + str([*range(5, 200)]).replace(" ", "")
    run(TAINTED, bad, "training.total_timesteps=2048", rule("r", kind="nan", respond="roll_back", times=2), code=1)
    assert Path("run/status").read_text() == "failed\n"
    (failed,) = events("run", "failed")
    assert failed["reason"].startswith("train/loss is nan after update ")
    assert [event["times"] for event in events("run", "rolled_back")] == [1, 2]


def test_below_goes_back_to_when_all_was_well_and_drops_what_came_after(run):
    bad = [SCORING, TAINTED, "buffers.rollout.bad=[5,6]", "buffers.rollout.taint=-9.0", "training.keep_last=9"]
    back = rule("r", kind="below", metric="train/score", value=0, respond="roll_back", channels=["log", "file"])
    run(*bad, "training.checkpoint_updates=1", back)
    alert, gone = events("run", "alert", "rolled_back")
    assert (alert["step"], alert["text"]) == (192, "train/score is -9, below 0")
    assert (gone["step"], gone["updates"], gone["skips"]) == (128, 4, 2)
    assert [row.get("train/score") for row in rows("run")] == [1.0, 1.0, None, 1.0]  # without two updates
    names = [path.name for path in sorted(Path("run/checkpoints").glob("0*"))]
    updates = [json.loads(Path("run/checkpoints", name, "MANIFEST.json").read_text())["counters"] for name in names]
    assert [counters["updates"] for counters in updates] == sorted(counters["updates"] for counters in updates)


def test_without_a_good_checkpoint_it_stops(run):
    back = rule("r", kind="below", metric="train/score", value=2, respond="roll_back")
    result = run(SCORING, back, code=1)
    assert "stopped by alert r: train/score is 1, below 2 (step 64); no good checkpoint; continue" in result.stderr


# Channels


class Webhook(ThreadingHTTPServer):
    """Remembers what was posted; answers with a code, or not before it is told to."""

    daemon_threads = True

    def __init__(self, code=200, silent=False):
        self.posts, self.code, self.is_over = [], code, threading.Event()
        self.silent = silent
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, self.headers["Content-Type"], json.loads(content)))
        if self.server.silent:
            self.server.is_over.wait(60)
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def webhook():
    servers = []

    def begin(**options):
        servers.append(Webhook(**options))
        return servers[-1]

    yield begin
    for server in servers:
        server.is_over.set()
        server.shutdown()
        server.server_close()


ABOVE = {"kind": "above", "metric": "train/score", "value": 0.5}


def test_a_webhook_gets_json(run, webhook, monkeypatch):
    server = webhook()
    monkeypatch.setenv("MY_HOOK", server.url)
    run(SCORING, rule("r", **ABOVE, channels=["webhook"]), "alerts.webhook=env:MY_HOOK", PATIENT)
    ((path, kind, content),) = server.posts
    assert (path, kind) == ("/hook", "application/json")
    assert (content["rule"], content["step"], content["run"]) == ("r", 64, "run")
    assert content["text"] == "run: r: train/score is 1, above 0.5 (step 64)"
    assert events("run", "alert", "alert_failed") == []
    assert server.url not in Path("run/config.yaml").read_text()


def test_a_webhook_that_does_not_answer_is_noted_and_stops_nothing(run, webhook):
    hook = f"alerts.webhook='{webhook(silent=True).url}'"
    run(SCORING, rule("r", **ABOVE, channels=["webhook"]), hook, "alerts.timeout_s=0.5")
    said = "an alert was not told: (webhook: timed out|not all alerts could be told within 1 s)"
    assert any(re.search(said, event["message"]) for event in events("run", "alert_failed"))
    assert Path("run/status").read_text() == "done\n"


def test_what_a_webhook_refuses_is_kept_to_be_said(webhook):
    with socket.socket() as deaf:  # it has its port and does not listen
        deaf.bind(("127.0.0.1", 0))
        urls = [
            webhook(code=500).url,
            f"http://127.0.0.1:{deaf.getsockname()[1]}/",
            "nowhere",
            "http://a..b/",
            "http://[/",
        ]
        courier = Courier({url: WebhookChannel(url, 60.0) for url in urls})
        for url in urls:
            courier.send(url, Alert("r", "above", "too high", "run", 64, 2, 0.0))
        courier.close(300.0)
    said = [courier.failures.get(timeout=60.0) for _ in urls]
    assert said[0] == f"{urls[0]}: HTTP Error 500: Internal Server Error"
    assert "Connection refused" in said[1]
    assert all(line.startswith(f"{url}: ") for url, line in zip(urls, said, strict=True))
    assert courier.failures.empty()


def test_the_desktop_is_told_by_notify_send(run, place, monkeypatch):
    program = place / "bin" / "notify-send"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {place}/told\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    run(SCORING, rule("r", **ABOVE, channels=["desktop"]), PATIENT)
    told = (place / "told").read_text().splitlines()
    assert told == ["--app-name=lab", "--", "lab: run", "r: train/score is 1, above 0.5 (step 64)"]


def test_without_notify_send_the_run_goes_on(run, monkeypatch, place):
    monkeypatch.setenv("PATH", str(place))
    run(SCORING, rule("r", **ABOVE, channels=["desktop"]), PATIENT)
    (failed,) = events("run", "alert_failed")
    assert failed["message"] == "an alert was not told: desktop: notify-send is not installed"


# Bad input


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([rule("r", kind="nun")], "alerts.rules.r.kind: unknown kind of alert 'nun'; did you mean 'nan'?"),
        ([rule("r", metric="a")], "alerts.rules.r.kind: missing"),
        ([rule("r", kind="below", metric="train/loss")], "alerts.rules.r.value: missing"),
        ([rule("r", kind="disk", metric="x")], "unknown key in alerts.rules.r 'metric' (choices: channels, factor,"),
        ([rule("r", kind="disk", free_mb="much")], "alerts.rules.r.free_mb: must be a valid number, not 'much'"),
        ([rule("r", kind="disk", free_mb=-1)], "alerts.rules.r.free_mb: must be greater than or equal to 0"),
        ([rule("r", kind="slow", rows=2)], "alerts.rules.r: rows must be 5 or more, not 2"),
        ([rule("r", kind="disk", respond="roll_back")], "alerts.rules.r.respond: a rule of kind disk can do stop, not"),
        ([rule("r", kind="heartbeat", respond="stop")], "a rule of kind heartbeat can do nothing, not stop"),
        (
            [rule("r", kind="disk", factor=0.5)],
            "alerts.rules.r.factor: goes with respond: lower_rate or roll_back, not",
        ),
        (
            [
                rule("r", kind="nan", respond="roll_back"),
                "environment._target_=tiny_plugin.FaultyEnv",
                "environment.exact_resume=false",
            ],
            "alerts.rules.r.respond: environment 'tensor/CartPole' cannot be restored exactly, so that a run in it",
        ),
        (
            [rule("r", kind="nan", respond="roll_back"), "transport.kind=memory"],
            "alerts.rules.r.respond: a run with actors (transport.kind) cannot roll back (choices: stop, null)",
        ),
        ([rule("r", kind="disk", respond="sleep")], "alerts.rules.r.respond: must be 'stop', 'lower_rate' or"),
        ([rule("r", kind="disk", channels=["mail"])], "alerts.rules.r.channels.0: must be 'log', 'file', 'desktop' or"),
        ([rule("r", kind="disk", channels=["webhook"])], "alerts.webhook: alerts.rules.r is told there, but give its"),
        (
            [rule("r", kind="disk", channels=["webhook"]), "alerts.webhook=env:NO_SUCH"],
            "alerts.webhook: alerts.rules.r is told there, but the variable NO_SUCH is not set",
        ),
        (["alerts.webhook=ftp://x"], "alerts.webhook: 'ftp://x' does not fit (URL that gets a POST of JSON"),
        (["alerts.rule.r.kind=nan"], "unknown key in alerts 'rule'; did you mean 'rules'?"),
    ],
)
def test_a_wrong_rule_dies_at_start(train, fails, overrides, line):
    assert line in fails(train(*overrides), 2)
    assert not Path("experiments").exists()
