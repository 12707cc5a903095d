from contextlib import suppress

import pytest

from rl_lab.tracking import perf
from rl_lab.tracking.perf import WallClock


@pytest.fixture
def now(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(perf, "perf_counter", lambda: moment[0])
    return moment


def test_nested_time_counts_once(now):
    clock = WallClock()
    with clock.timer("update"):
        now[0] += 1
        with clock.timer("log"):
            now[0] += 2
            with clock.timer("update"):
                now[0] += 4
        now[0] += 8
    with suppress(KeyError), clock.timer("env"):
        now[0] += 16
        raise KeyError
    now[0] += 1
    row = clock.report(env_steps=64, updates=8)
    assert row == {
        "perf/elapsed_s": 32.0,
        "perf/env_steps_per_s": 2.0,
        "perf/updates_per_s": 0.25,
        "perf/share_update": 13 / 32,
        "perf/share_log": 2 / 32,
        "perf/share_env": 16 / 32,
        "perf/share_other": 1 / 32,
    }
    now[0] += 2
    row = clock.report(env_steps=66, updates=8)
    assert (row["perf/env_steps_per_s"], row["perf/share_env"], row["perf/share_other"]) == (1.0, 0.0, 1.0)


def test_restart_counts_earlier_processes_and_keeps_timers(now):
    clock = WallClock()
    timer = clock.timer("env")
    with timer:
        now[0] += 5
    clock.restart(elapsed_s=50.0, env_steps=1000, updates=10)
    with timer:
        now[0] += 2
    row = clock.report(1004, 10)
    assert (row["perf/elapsed_s"], row["perf/env_steps_per_s"], row["perf/share_env"]) == (52.0, 2.0, 1.0)
    assert clock.elapsed_s == 52.0


def test_a_timer_reads_the_clock_twice(monkeypatch):
    clock, calls = WallClock(), []
    monkeypatch.setattr(perf, "perf_counter", lambda: calls.append(1) or 0.0)
    with clock.timer("env"):
        pass
    assert len(calls) == 2
