"""A directory that goes with whoever made it, also when that process is killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Reads until nobody holds the other end of the pipe any more: the system closes it however a process ends.
_JANITOR = "import shutil, sys; sys.stdin.buffer.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


class Scratch(NamedTuple):
    """A directory that is removed when no process holds its lifeline any more."""

    path: Path
    lifeline: int  # a file descriptor, for processes that need the directory too


@contextmanager
def scratch_directory(path: Path) -> Iterator[Scratch]:
    """Make a directory and remove it at the end of the block; what was moved elsewhere stays."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _JANITOR, str(path.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to the whole group must not reach it
    ) as janitor:
        assert janitor.stdin is not None
        path.mkdir(parents=True)
        try:
            yield Scratch(path, janitor.stdin.fileno())
        finally:
            shutil.rmtree(path, ignore_errors=True)
