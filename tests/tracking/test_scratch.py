import os
import signal
import subprocess
import sys
import time

import pytest

from rl_lab.tracking.scratch import scratch_directory

HOLDER = """
import importlib.util, sys, time  # the file itself: importing the lab would wait for torch
spec = importlib.util.spec_from_file_location("scratch", sys.argv[1])
scratch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scratch)
from pathlib import Path
with scratch.scratch_directory(Path(sys.argv[2])) as place:
    (place.path / "file").write_text("x")
    print("ready", flush=True)
    time.sleep(60)
"""


def gone(path):
    patience = time.monotonic() + 20
    while path.exists() and time.monotonic() < patience:
        time.sleep(0.01)
    return not path.exists()


def test_it_goes_at_the_end_and_what_was_moved_stays(tmp_path):
    with scratch_directory(tmp_path / "a") as scratch:
        (scratch.path / "file").write_text("x")
    assert not scratch.path.exists()
    with scratch_directory(tmp_path / "a") as scratch:
        (scratch.path / "file").write_text("x")
        os.rename(scratch.path, tmp_path / "b")
    assert (tmp_path / "b" / "file").read_text() == "x"


def test_an_error_removes_it(tmp_path):
    with pytest.raises(RuntimeError), scratch_directory(tmp_path / "a") as scratch:
        raise RuntimeError
    assert not scratch.path.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_none(tmp_path, number):
    import rl_lab.tracking.scratch as module

    command = [sys.executable, "-c", HOLDER, module.__file__, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert (tmp_path / "a" / "file").exists()
        process.send_signal(number)
    assert gone(tmp_path / "a")
