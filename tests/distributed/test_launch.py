"""Starting the processes of a run: what each is told, how they end, and how a signal reaches them."""

import os
import signal
import subprocess
import sys
import threading
import time

from rl_lab.distributed.launch import launch

PYTHON = [sys.executable, "-S", "-E", "-c"]


def test_every_process_knows_who_it_is(tmp_path):
    code = f"import os; open(f'{tmp_path}/' + os.environ['RANK'], 'w').write(' '.join(os.environ[k] for k in %r))"
    keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert launch([*PYTHON, code % (keys,)], 3) == 0
    said = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [words[:3] for words in said] == [[str(rank), str(rank), "3"] for rank in range(3)]
    assert len({tuple(words[3:]) for words in said}) == 1


def test_when_one_fails_the_others_are_asked_to_leave(tmp_path):
    code = f"""
import os, signal, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("{tmp_path}/ready"): time.sleep(0.005)
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: (open("{tmp_path}/asked", "w"), sys.exit(1)))
open("{tmp_path}/ready", "w")
time.sleep(60)
"""
    started = time.monotonic()
    assert launch([*PYTHON, code], 2) == 3
    assert (tmp_path / "asked").exists()
    assert time.monotonic() - started < 20


def test_a_signal_that_comes_while_they_start_reaches_all_of_them(tmp_path, monkeypatch):
    code = f"""
import os, signal, sys, time
rank = os.environ["RANK"]
signal.signal(signal.SIGINT, lambda *_: (open(f"{tmp_path}/heard_{{rank}}", "w"), sys.exit(0)))
open(f"{tmp_path}/ready_{{rank}}", "w")
while True: time.sleep(0.01)
"""
    started, start = [], subprocess.Popen

    def interrupted(*arguments, **options):
        started.append(start(*arguments, **options))
        while not (tmp_path / f"ready_{len(started) - 1}").exists():
            time.sleep(0.005)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    assert launch([*PYTHON, code], 2) == 0
    assert [(tmp_path / f"heard_{rank}").exists() for rank in range(2)] == [True, True]


def test_a_signal_reaches_all_of_them_and_a_second_one_ends_them(tmp_path):
    code = f"""
import os, signal, time
rank, heard = os.environ["RANK"], []
signal.signal(signal.SIGINT, lambda number, _: open(f"{tmp_path}/heard_{{rank}}", "w"))
open(f"{tmp_path}/ready_{{rank}}", "w")
while True: time.sleep(0.01)
"""

    def press_twice():
        for name in ("ready", "heard"):
            while not all((tmp_path / f"{name}_{rank}").exists() for rank in range(2)):
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    person = threading.Thread(target=press_twice)
    person.start()
    assert launch([*PYTHON, code], 2) == 128 + signal.SIGKILL
    person.join()
    assert signal.getsignal(signal.SIGINT) is before
