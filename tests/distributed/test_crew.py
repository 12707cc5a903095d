"""Processes that are kept running: by scripts that die, end and wait as they are told."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rl_lab.distributed import crew
from rl_lab.distributed.crew import Crew, Member

WAIT = "import time\nfor _ in range(6000): time.sleep(0.01)\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(crew, "RESTART_S", (0.01, 10.0))
    monkeypatch.setattr(crew, "GRACE_S", 20.0)


def member(name, script):
    return Member(name, [sys.executable, "-c", script])


def run(tmp_path, learner, *actors):
    lines = []
    logs = tmp_path / "run" / "logs"
    (tmp_path / "run").mkdir()
    code = Crew(learner, actors, logs, lines.append).run(lambda: True)
    return code, lines, logs


def until(path):
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n"


def test_an_actor_that_dies_begins_again_and_the_end_of_the_learner_is_the_end_of_all(tmp_path):
    mark, done = tmp_path / "mark", tmp_path / "done"
    actor = f"import os\np = {str(mark)!r}\nopen(p, 'a').write('x')\nprint('begun', flush=True)\n"
    actor += f"if len(open(p).read()) < 3: os.kill(os.getpid(), 9)\nopen({str(done)!r}, 'w').close()\n"
    code, lines, logs = run(tmp_path, member("learner", until(done) + "print('learned')"), member("actor", actor))
    assert code == 0
    assert mark.read_text() == "xxx"
    assert lines.count("actor | begun") == 3
    assert lines.count("actor ended with code -9; it is started again") == 2
    assert (logs / "actor.log").read_text() == "begun\n" * 3
    assert (logs / "learner.log").read_text() == "learned\n"


def test_an_actor_that_runs_elsewhere_is_kept_running_by_who_starts_it_there(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "RESTART_S", (0.01, 0.01))
    started, done = [], tmp_path / "done"

    def elsewhere(command, log):
        with open(log, "ab") as output:
            started.append(subprocess.Popen([sys.executable, *command], stdout=output))
        return started[-1]

    actor = "import os\nprint('begun', flush=True)\n"
    first = tmp_path / "first"
    actor += f"if not os.path.exists({str(first)!r}):\n open({str(first)!r}, 'w').close()\n os.kill(os.getpid(), 9)\n"
    actor += f"open({str(done)!r}, 'w').close()\n" + WAIT
    placed = Member("actor", ["-c", actor], elsewhere=elsewhere)
    code, lines, logs = run(tmp_path, member("learner", until(done)), placed)
    assert code == 0
    assert lines.count("actor ended with code -9; it is started again") == 1
    assert (logs / "actor.log").read_text() == "begun\n" * 2
    assert [process.wait(120) for process in started] == [-signal.SIGKILL, -signal.SIGTERM]  # asked to leave at the end


def test_an_actor_that_leaves_before_the_learner_is_done_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "RESTART_S", (0.01, 0.01))
    mark, done = tmp_path / "mark", tmp_path / "done"
    actor = f"p = {str(mark)!r}\nopen(p, 'a').write('x')\n"
    actor += f"if len(open(p).read()) == 3: open({str(done)!r}, 'w').close()\n"
    code, _, _ = run(tmp_path, member("learner", until(done)), member("actor", actor))
    assert code == 0
    assert len(mark.read_text()) >= 3


def test_a_learner_that_was_killed_goes_on(tmp_path):
    mark = tmp_path / "mark"
    script = f"import os\np = {str(mark)!r}\nif not os.path.exists(p): open(p, 'w').close(); os.kill(os.getpid(), 9)\n"
    code, lines, _ = run(tmp_path, member("learner", script))
    assert code == 0
    assert "learner ended with code -9; it is started again" in lines


@pytest.mark.parametrize(("code", "begins"), [(1, crew.MAX_EARLY), (crew.USAGE, 1)])
def test_an_actor_that_cannot_begin_ends_all(tmp_path, code, begins):
    actor = member("actor", f"print('no', flush=True); raise SystemExit({code})")
    found, lines, _ = run(tmp_path, member("learner", WAIT), actor)
    assert found == code
    assert lines.count("actor | no") == begins


def test_a_learner_that_fails_ends_all(tmp_path):
    actor = member("actor", WAIT)
    code, _, _ = run(tmp_path, member("learner", "raise SystemExit(3)"), actor)
    assert code == 3
    assert actor.process is None or actor.process.returncode == -signal.SIGTERM


def test_a_signal_reaches_all(tmp_path):
    marks = [tmp_path / "learner", tmp_path / "actor"]  # of those who are ready for a signal
    leave = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    learner, actor = (member(mark.name, leave + f"open({str(mark)!r}, 'w').close()\n" + WAIT) for mark in marks)

    def ask():
        deadline = time.monotonic() + 60
        while not all(mark.exists() for mark in marks) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    code, _, _ = run(tmp_path, learner, actor)
    asking.join()
    assert code == 7
    assert actor.process.returncode == 7
