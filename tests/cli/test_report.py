import os
import subprocess
import sys

import pytest

from rl_lab.cli.report import Reported
from rl_lab.core import LabError, UsageError
from rl_lab.orchestration.signals import Interrupted


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LabError("a\nb"), 1, "error: a b"),
        (UsageError("c"), 2, "error: c"),
        (KeyError(), 1, "error: KeyError: no message (--debug shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted(15), 143, "interrupted by SIGTERM; continue with `lab resume`"),
    ],
)
def test_how_a_command_ends(capsys, error, code, line):
    with pytest.raises(SystemExit) as left, Reported():
        raise error
    assert left.value.code == code
    assert capsys.readouterr().err == line + "\n"


def test_an_exit_passes_and_so_does_success():
    with Reported():
        pass
    with pytest.raises(SystemExit) as left, Reported():
        raise SystemExit(7)
    assert left.value.code == 7


@pytest.mark.parametrize("count", [10, 100_000])  # what is written at the end, and what is written on the way
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_whoever_reads_may_leave(monkeypatch, count, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    lines = f"from rl_lab.cli.report import Reported\nwith Reported():\n    for _ in range({count}): print('a line')"
    reader, writer = os.pipe()
    command = subprocess.Popen([sys.executable, "-c", lines], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(reader)
    os.close(writer)
    _, errors = command.communicate(timeout=60)
    assert (command.returncode, errors) == (1, "")


def test_a_broken_pipe_of_something_else_is_an_error(capsys):
    with pytest.raises(SystemExit), Reported():
        raise BrokenPipeError(32, "Broken pipe")
    assert capsys.readouterr().err == "error: BrokenPipeError: [Errno 32] Broken pipe (--debug shows where)\n"
