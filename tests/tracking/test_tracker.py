import json
import math
import os

import pytest
import torch

from rl_lab.core import CheckpointError, Counters, Mean, NotFiniteError
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.sinks import Sink
from rl_lab.tracking.tracker import Tracker


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Recorder(Sink):
    def __init__(self):
        self.calls = []

    def open(self, **position):
        self.calls.append(("open", position))

    def row(self, row):
        self.calls.append(("row", dict(row)))

    def perf(self, row):
        self.calls.append(("perf", dict(row)))

    def event(self, event):
        self.calls.append(("event", dict(event)))

    def progress(self, position):
        self.calls.append(("progress", dict(position)))

    def close(self):
        self.calls.append(("close", None))


def test_rows_are_weighted_means_of_their_interval(run):
    tracker = Tracker(run, every_steps=100)
    tracker.open(1000)
    counters = Counters(60, 1, 2, 3)
    tracker.log("train", {"loss": torch.tensor(1.0), "never": Mean(0.0, 0.0)})
    assert not tracker.write_due(counters, "joint")
    tracker.log("train", {"loss": 2.0})
    tracker.log("collect", {"return": Mean(30.0, 3.0)})
    counters.env_steps = 120
    assert tracker.write_due(counters, "joint")
    assert not tracker.write_due(counters, "joint")
    counters.env_steps = 200
    assert tracker.write_due(counters, "joint")  # nothing was logged: no row
    tracker.close()
    position = {"step": 120, "updates": 1, "episodes": 2, "cycles": 3, "phase": "joint"}
    assert rows(run.metrics_file) == [{**position, "collect/return": 10.0, "train/loss": 1.5}]
    assert list(rows(run.metrics_file)[0]) == [*position, "collect/return", "train/loss"]


def test_gauges_are_read_when_a_row_is_written_and_frames_stand_beside_steps(run):
    tracker = Tracker(run, every_steps=100, frames_per_step=4)
    tracker.open(1000)
    counters, asked = Counters(60), []

    def gauges():
        asked.append(counters.env_steps)
        return {"buffer/replay/size": float(counters.env_steps)}

    tracker.log("train", {"loss": 1.0})
    assert not tracker.write_due(counters, "joint", gauges)
    counters.env_steps = 120
    assert tracker.write_due(counters, "joint", gauges)
    tracker.flush(counters, "joint", gauges)  # nothing was logged since: no row
    tracker.write("eval", {"return": 5.0}, counters, "joint")
    tracker.close()
    means, evaluation = rows(run.metrics_file)
    assert list(means) == [
        "step",
        "frames",
        "updates",
        "episodes",
        "cycles",
        "phase",
        "train/loss",
        "buffer/replay/size",
    ]
    assert (means["step"], means["frames"], means["buffer/replay/size"]) == (120, 480, 120.0)
    assert (evaluation["frames"], "buffer/replay/size" in evaluation) == (480, False)
    assert asked == [120]
    assert rows(run.perf_file)[-1]["frames"] == 480


def test_either_clock_fires_and_both_are_consumed(run):
    tracker = Tracker(run, every_steps=100, every_updates=10)
    tracker.open(1000)
    fired = [tracker.write_due(Counters(steps, updates), "p") for steps, updates in
             [(50, 5), (50, 10), (100, 19), (120, 20), (199, 29), (300, 30), (300, 30)]]  # fmt: skip
    tracker.close()
    assert fired == [False, True, True, True, False, True, False]


def test_no_clock_never_fires(run):
    tracker = Tracker(run)
    tracker.open(10)
    assert not tracker.write_due(Counters(10**9, 10**9), "p")
    tracker.close()


def test_immediate_rows_leave_the_running_means_alone(run):
    tracker = Tracker(run)
    tracker.open(10)
    tracker.log("train", {"loss": 4.0})
    values = tracker.write("eval", {"return": torch.tensor(2.0), "nan": math.nan}, Counters(5), "p")
    tracker.flush(Counters(6), "p")
    tracker.close({"status": "done"})
    assert values["eval/return"] == 2.0
    first, second = run.metrics_file.read_text().splitlines()
    assert '"eval/nan": NaN' in first
    assert json.loads(second)["train/loss"] == 4.0
    assert "eval/return" not in json.loads(second)


def test_summary(run):
    tracker = Tracker(run)
    tracker.open(10)
    for step, value in enumerate([1.0, 5.0, 3.0, math.nan]):
        tracker.write("eval", {"return": value, "length": 7}, Counters(step), "p")
    tracker.close({"status": "done"})
    summary = run.read_summary()
    assert summary["status"] == "done"
    assert summary["position"]["step"] == 3
    assert math.isnan(summary["last"]["eval/return"])
    assert summary["highest"] == {"eval/return": 5.0, "eval/length": 7.0}


def test_wall_clock_facts_are_in_perf_only(run):
    tracker = Tracker(run, every_steps=10)
    tracker.open(100)
    with tracker.timer("env"):
        tracker.log("train", {"loss": 1.0})
    tracker.write_due(Counters(10, 2), "p")
    tracker.close()
    (row,) = rows(run.perf_file)
    assert {"step", "time", "perf/elapsed_s", "perf/env_steps_per_s", "perf/updates_per_s", "perf/share_env"} <= set(
        row
    )
    assert not [key for key in rows(run.metrics_file)[0] if key.startswith("perf/") or key == "time"]
    again = Tracker(run)
    again.set_state({"sums": {}, "clocks": {}, "offsets": {"metrics": 0, "events": 0}})
    again.open(100, Counters(10, 2))
    assert again.elapsed_s >= row["perf/elapsed_s"]
    again.close()
    assert rows(run.perf_file) == [row]  # history, never cut


def test_sinks_hear_everything(run):
    sink = Recorder()
    tracker = Tracker(run, [sink], every_steps=10)
    tracker.event("early", n=1)
    tracker.open(100, Counters(0))
    tracker.log("train", {"loss": 1.0})
    tracker.write_due(Counters(10), "p")
    tracker.event("phase", name="p")
    tracker.close()
    assert [kind for kind, _ in sink.calls] == ["open", "event", "progress", "row", "perf", "event", "close"]
    assert sink.calls[0][1] == {"total_steps": 100, "start_step": 0, "resumed": False}
    assert [event["kind"] for event in rows(run.events_file)] == ["early", "phase"]
    assert json.loads(run.heartbeat_file.read_text())["step"] == 10


def test_a_sink_that_fails_is_dropped_and_noted(run):
    class Broken(Recorder):
        def row(self, row):
            raise BrokenPipeError(32, "Broken pipe")

    broken, whole = Broken(), Recorder()
    tracker = Tracker(run, [broken, whole])
    tracker.open(10)
    for step in range(2):
        tracker.write("eval", {"return": 1.0}, Counters(step), "p")
    tracker.close()
    assert [kind for kind, _ in broken.calls] == ["open"]
    assert [kind for kind, _ in whole.calls] == ["open", "event", "row", "row", "close"]
    assert "Broken was dropped" in rows(run.events_file)[0]["message"]


def test_a_run_that_begins_anew_drops_old_rows(run):
    for _ in range(2):  # killed before its first checkpoint, then started again
        tracker = Tracker(run)
        tracker.open(10)
        tracker.write("eval", {"return": 1.0}, Counters(1), "p")
        tracker.event("x")
        tracker.close()
    assert len(rows(run.metrics_file)) == len(rows(run.events_file)) == 1


def test_close_without_open(run):
    Tracker(run).close()
    assert run.read_summary() is None


def test_close_lets_go_of_everything_when_the_disk_is_full(run, monkeypatch):
    sink = Recorder()
    tracker = Tracker(run, [sink])
    tracker.open(10)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    tracker.write("eval", {"return": 1.0}, Counters(1), "p")
    with pytest.raises(CheckpointError, match="disk full"):
        tracker.get_state()
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: disk full"):
        tracker.close()
    assert sink.calls[-1][0] == "close"
    assert not tracker._events.is_open


@pytest.mark.parametrize("name", ["metrics", "events"])
def test_files_that_were_cut_behind_our_back(run, name):
    tracker = Tracker(run)
    tracker.open(10)
    tracker.write("eval", {"return": 1.0}, Counters(1), "p")
    tracker.event("x")
    state = tracker.get_state()
    tracker.close()
    os.truncate(run.path / f"{name}.jsonl", 5)
    with pytest.raises(CheckpointError, match=rf"{run.path}/{name}.jsonl has 5 bytes"):
        Tracker(run).set_state(state)


def test_another_interval_after_a_resume(run):
    tracker = Tracker(run, every_steps=100)
    tracker.open(1000)
    tracker.write_due(Counters(320), "p")
    state = tracker.get_state()
    tracker.close()
    finer = Tracker(run, every_steps=50, every_updates=7)
    finer.set_state(state)
    assert not finer.write_due(Counters(320), "p")  # 320 // 50 = 6 multiples passed, of 300 // 50 = 6 before
    finer.open(1000)
    finer.log("g", {"x": 1.0})
    assert finer.write_due(Counters(350), "p")
    finer.close()


STEPS = 14


def play(tracker, counters, step):
    """One cycle of a run: some logs, a row when due, an evaluation every fifth time."""
    generator = torch.Generator().manual_seed(step)
    counters.env_steps += 8
    counters.updates += 1
    counters.cycles += 1
    loss = torch.rand((), generator=generator)
    tracker.log("train", {"loss": loss, "kl": Mean(loss * 3, torch.tensor(3)), "lr": 1 / (step + 1)})
    if step % 3 == 0:
        counters.episodes += 1
        tracker.log("collect", {"return": Mean(step * 0.1, 1.0)})
    if step % 5 == 4:
        tracker.write("eval", {"return": loss * 10, "bad": math.nan}, counters, "joint")
        tracker.event("eval", step=counters.env_steps)
    tracker.write_due(counters, "warmup" if step < 6 else "joint")


def finish(run, tracker, counters, first):
    for step in range(first, STEPS):
        play(tracker, counters, step)
    tracker.flush(counters, "joint")
    tracker.close()
    return run.metrics_file.read_bytes()


def clocks():
    return {"every_steps": 24, "every_updates": 4}


@pytest.mark.parametrize("ahead", [0, 1, 6])
def test_killed_at_every_point_the_metrics_are_the_same_bytes(tmp_path, ahead):
    whole = RunDirectory.create(tmp_path, "whole", 0)
    tracker = Tracker(whole, **clocks())
    tracker.open(100)
    expected = finish(whole, tracker, Counters(), 0)
    assert expected.count(b"\n") > 6
    for point in range(STEPS):
        run = RunDirectory.create(tmp_path, f"killed{point}", 0)
        store, counters = CheckpointStore(run.checkpoints), Counters()
        tracker = Tracker(run, **clocks())
        tracker.open(100)
        for step in range(point):
            play(tracker, counters, step)
        state = {"tracker": tracker.get_state(), "counters": counters.get_state()}
        store.save(state, counters=counters.get_state(), phase="x")
        for step in range(point, min(point + ahead, STEPS)):  # goes on after the checkpoint, and dies
            play(tracker, counters, step)
        with open(run.metrics_file, "ab") as file:
            file.write(b'{"step": 12, "half a li' if ahead else b"")
        for file in (tracker._metrics, tracker._events, tracker._perf):
            file.close_quietly()

        loaded, counters = store.load_newest().state, Counters()
        counters.set_state(loaded["counters"])
        resumed = Tracker(run, **clocks())
        resumed.event("resume")
        resumed.set_state(loaded["tracker"])
        resumed.open(100, counters)
        assert finish(run, resumed, counters, point) == expected, point


def test_a_row_of_what_is_not_finite_is_refused_and_named(run):
    tracker = Tracker(run, every_steps=10)
    tracker.open(100)
    names = ("norm", "total", "a_loss", "b_loss", "c_loss")
    values = (math.nan, math.inf, 1.0, torch.tensor(math.nan), -math.inf)
    tracker.log("collect", {"info/distance": math.nan})  # an environment may report what it likes
    tracker.log("train", dict.fromkeys(names, 1.0))
    assert tracker.write_due(Counters(env_steps=10), "p")
    tracker.log("train", dict(zip(names, values, strict=True)))
    tracker.log("train", dict.fromkeys(names, 1.0))  # what came once is not forgotten
    text = "^train/b_loss is nan, train/c_loss is -inf, train/norm is nan and 1 more$"
    with pytest.raises(NotFiniteError, match=text):
        tracker.check_finite()
    with pytest.raises(NotFiniteError, match=text):
        tracker.write_due(Counters(env_steps=20), "p")
    assert len(rows(run.metrics_file)) == 1
    means = tracker.running_means()
    assert list(means) == [f"train/{name}" for name in names]
    assert means["train/a_loss"] == 1.0
    tracker.close()
