"""The process of a trial: a `lab train` like any other, that leaves with a checkpoint when its sweep is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

# On Linux the process is asked to stop, as by Ctrl-C, when the one that started it has died in whatever way.
BOOTSTRAP = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(143)
sys.argv[:2] = ["lab"]
from rl_lab.cli.main import main
main()
"""


class TrialProcess(Protocol):
    """What is asked of a process; `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def terminate(self) -> None:
        """Ask it to stop."""

    def kill(self) -> None:
        """End it at once."""


class Starter(Protocol):
    """Starts `lab WORDS` with these variables, its output at the end of a file."""

    def __call__(self, words: Sequence[str], variables: Mapping[str, str], log: Path) -> TrialProcess:
        """Return the process."""


def start_process(words: Sequence[str], variables: Mapping[str, str], log: Path) -> TrialProcess:
    """Start `lab WORDS` in a process and a session of its own: a terminal's Ctrl-C reaches it through its sweep."""
    command = [sys.executable, "-c", BOOTSTRAP, str(os.getpid()), *words]
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
