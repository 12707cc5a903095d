import io
import re

import pytest
from rich.console import Console

from rl_lab.core import Counters, LabError
from rl_lab.tracking.terminal import TerminalSink, make_console
from rl_lab.tracking.terminal_view import RunView, duration, number
from rl_lab.tracking.tracker import Tracker


class Screen(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def row(step, **metrics):
    position = {"step": step, "updates": step // 10, "episodes": 0, "cycles": 0, "phase": "p [x]"}
    return {**position, **{key.replace("_", "/", 1): value for key, value in metrics.items()}}


PERF = {"perf/env_steps_per_s": 12345.6, "perf/updates_per_s": 7.25}


def test_plain_lines_without_escape_codes(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream, clock = io.StringIO(), Clock()
    sink = TerminalSink("[b]", make_console(stream), clock)
    sink.open(total_steps=1000, start_step=0, resumed=False)
    clock.now = 1.0
    sink.perf(PERF)
    sink.progress(row(50))
    sink.row(row(100, train_loss=0.25, collect_return=21.0))
    sink.row(row(110, train_loss=0.5))  # within two seconds: not shown
    sink.row(row(120, eval_return=33.0))  # evaluations always are
    sink.event({"kind": "phase", "name": "x"})
    sink.event({"kind": "damaged", "message": "000002: state.json is missing"})
    sink.event({"kind": "checkpoint_failed", "reason": "disk full"})
    clock.now = 4.0
    sink.row(row(400, train_loss=0.75))
    sink.close()
    text = stream.getvalue()
    assert "\x1b" not in text
    assert text.splitlines() == [
        "[b]: starts at step 0 of 1,000",
        "step 100/1,000 (10%) | phase p [x] | 12,346 steps/s | eta 0:00:09 | collect/return 21.00 | train/loss 0.25",
        "step 120/1,000 (12%) | phase p [x] | 12,346 steps/s | eta 0:00:07 | eval/return 33.00",
        "damaged: 000002: state.json is missing",
        "checkpoint_failed: disk full",
        "step 400/1,000 (40%) | phase p [x] | 12,346 steps/s | eta 0:00:06 | train/loss 0.75",
    ]


def test_live_panel_on_a_terminal():
    screen, clock = Screen(), Clock()
    sink = TerminalSink(
        "ppo_cartpole", Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"}), clock
    )
    sink.open(total_steps=1000, start_step=200, resumed=True)
    sink.perf(PERF)
    clock.now = 10.0
    sink.row(row(600, eval_return=33.0, train_loss=0.001234))
    drawn = len(screen.getvalue())
    for _ in range(5):
        sink.progress(row(610))  # evaluations are drawn at once, the bar four times a second at most
    assert len(screen.getvalue()) == drawn
    clock.now = 10.3
    sink.progress(row(620))
    assert len(screen.getvalue()) > drawn
    sink.event({"kind": "damaged", "message": "a checkpoint [000002]"})
    sink.close()
    sink.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    for part in ("ppo_cartpole", "620 / 1,000 steps (62%)", "62 updates", "phase p [x]", "12,346 env steps/s",
                 "7.2 updates/s", "eval/return 33.00", "train/loss 0.001234", "damaged: a checkpoint [000002]",
                 "elapsed 0:00:10, eta 0:00:09"):  # fmt: skip
        assert part in text, part
    assert "[bold]" not in text


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    sink = TerminalSink("x", make_console(screen))
    sink.open(total_steps=10, start_step=3, resumed=True)
    assert screen.getvalue() == "x: resumes at step 3 of 10\n"


def test_panel_under_a_tracker(run):
    screen = Screen()
    console = Console(file=screen, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    tracker = Tracker(run, [TerminalSink("x", console)], every_steps=10)
    tracker.open(100)
    tracker.log("train", {"loss": 0.5})
    tracker.write_due(Counters(20, 2), "p")
    tracker.close()
    assert "train/loss" in screen.getvalue()


def test_default_console_is_stdout(capsys):
    TerminalSink("x").open(total_steps=1, start_step=0, resumed=False)
    assert capsys.readouterr().out == "x: starts at step 0 of 1\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (487.123, "487.12"),
        (-1.5, "-1.50"),
        (0.0, "0"),
        (0.00012345, "0.0001234"),
        (float("nan"), "nan"),
        (1.5e7, "1.5e+07"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_durations():
    assert [duration(seconds) for seconds in (0.4, 61, 3661, float("inf"))] == [
        "0:00:00",
        "0:01:01",
        "1:01:01",
        "-:--:--",
    ]


def test_view_without_a_total():
    view = RunView(Clock())
    assert (view.fraction, view.eta_s) == (0.0, float("inf"))


def test_a_reader_that_has_left_ends_the_run_in_one_line():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(LabError, match="continue with `lab resume`"):
        TerminalSink("x", make_console(Gone())).open(total_steps=1, start_step=0, resumed=False)
