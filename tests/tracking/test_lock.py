import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from rl_lab.core import RunDirectoryError
from rl_lab.tracking.lock import exclusive_lock, is_locked, read_owner

HOLDER = """
import sys, time
from pathlib import Path
from rl_lab.tracking.lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_second_process_is_refused_until_the_first_is_dead(tmp_path, holder):
    path = tmp_path / "lock"
    assert is_locked(path)
    with (
        pytest.raises(
            RunDirectoryError, match=rf"{tmp_path} is in use by pid {holder.pid} on host {socket.gethostname()}"
        ),
        exclusive_lock(path),
    ):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert read_owner(path)["pid"] == holder.pid  # the note is still there, but only the kernel's lock counts
    assert not is_locked(path)
    with exclusive_lock(path):
        assert read_owner(path)["pid"] == os.getpid()
        with pytest.raises(RunDirectoryError, match=f"pid {os.getpid()}"), exclusive_lock(path):
            pass
    assert read_owner(path) is None
    assert not is_locked(path)


FORKING_HOLDER = """
import os, sys, time
from pathlib import Path
from rl_lab.tracking.lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_orphaned_workers_do_not_keep_the_lock(tmp_path):
    path = tmp_path / "lock"
    owner = subprocess.Popen([sys.executable, "-c", FORKING_HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    worker = int(owner.stdout.readline())
    try:
        assert is_locked(path)
        owner.kill()
        owner.wait()
        os.kill(worker, 0)  # it lives
        assert not is_locked(path)
    finally:
        os.kill(worker, signal.SIGKILL)
        owner.stdout.close()


LEAVING_CHILD = """
import os, sys
from pathlib import Path
from rl_lab.tracking.lock import exclusive_lock, is_locked
path, pid = Path(sys.argv[1]), 1
with exclusive_lock(path):
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        sys.exit(0 if is_locked(path) else 4)
"""


def test_a_child_that_leaves_the_block_releases_nothing(tmp_path):
    assert subprocess.run([sys.executable, "-c", LEAVING_CHILD, str(tmp_path / "lock")], check=False).returncode == 0


def test_unknown_owner(tmp_path, holder):
    (tmp_path / "lock").write_text("garbage")
    with pytest.raises(RunDirectoryError, match="another process"), exclusive_lock(tmp_path / "lock"):
        pass


@pytest.mark.parametrize("content", ["", "3", "{}", '{"pid": 1}'])
def test_owner_notes_that_say_nothing(tmp_path, content):
    (tmp_path / "lock").write_text(content)
    assert read_owner(tmp_path / "lock") is None
    (tmp_path / "lock").write_text(json.dumps({"pid": 1, "host": "h"}))
    assert read_owner(tmp_path / "lock") == {"pid": 1, "host": "h"}


def test_no_file_no_lock(tmp_path):
    assert not is_locked(tmp_path / "lock")


def test_cannot_write(tmp_path):
    path = tmp_path / "missing" / "lock"
    with pytest.raises(RunDirectoryError, match=f"cannot write in run directory {path.parent}"), exclusive_lock(path):
        pass


def test_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunDirectoryError, match="No locks available"), exclusive_lock(tmp_path / "lock"):
        pass
