"""A learner and its actors as processes of one machine: logs apart, restarts, and one end for all."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from rl_lab.core.signal_handlers import handling

GRACE_S = 30.0  # for all to end, once they are asked to; then they are killed
POLL_S = 0.05
RESTART_S = (1.0, 10.0)  # wait before a restart; one who lived for less than the second has died early
MAX_EARLY = 5  # times in a row that one may die early
USAGE = 2  # the exit code of a command that was wrong: another try is too
Echo = Callable[[str], None]


class Process(Protocol):
    """What is asked of a process; `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""


@dataclass
class Member:
    """A process that is kept running.

    Attributes:
        name: Of its log.
        command: What it runs.
        elsewhere: Starts the command on some machine, with a file for its output; None: it runs on this one.
    """

    name: str
    command: Sequence[str]
    elsewhere: Callable[[Sequence[str], Path], Process] | None = None
    process: Process | None = None
    begun: float = 0.0  # monotonic
    due: float = 0.0  # when it is started again
    early: int = 0  # deaths in a row
    writers: list[threading.Thread] = field(default_factory=list)

    def start(self, logs: Path, echo: Echo) -> None:
        """Start it; its output goes line by line to `<logs>/<name>.log` and, of one that runs here, to `echo`."""
        self.begun = time.monotonic()
        if self.elsewhere is not None:
            logs.mkdir(exist_ok=True)
            self.process = self.elsewhere(self.command, logs / f"{self.name}.log")
            return
        environ = os.environ | {"PYTHONUNBUFFERED": "1"}
        # A session of its own: a terminal's Ctrl-C reaches it through this process, and only once.
        self.process = process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, start_new_session=True
        )
        writer = threading.Thread(target=self._copy, args=(process, logs, echo), daemon=True)
        self.writers.append(writer)
        writer.start()

    def code(self) -> int | None:
        """Return its exit code, None while it runs."""
        return None if self.process is None else self.process.poll()

    def send(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def _copy(self, process: subprocess.Popen[bytes], logs: Path, echo: Echo) -> None:
        assert process.stdout is not None
        early: list[bytes] = []  # before the run's directory is there
        with process.stdout as output:
            for line in output:
                echo(f"{self.name} | {line.decode(errors='replace').rstrip()}")
                early.append(line)
                if logs.parent.is_dir():
                    logs.mkdir(exist_ok=True)
                    with open(logs / f"{self.name}.log", "ab") as file:
                        file.writelines(early)
                    early = []


class Crew:
    """The learner, whose end is the end of all, and actors, who are started again when they end before it.

    Args:
        learner: Is started again when a signal killed it: it goes on from its checkpoint.
        actors: Are started when `is_ready`.
        logs: Directory of their logs, in a directory that the learner makes.
        echo: Shows a line.
    """

    def __init__(self, learner: Member, actors: Sequence[Member], logs: Path, echo: Echo) -> None:
        self._learner, self._actors, self._logs, self._echo = learner, list(actors), logs, echo
        self._asked = 0  # the signal that asked all to end

    def run(self, is_ready: Callable[[], bool]) -> int:
        """Run all to the end of the learner and return its exit code, or that of an actor who cannot begin."""
        try:
            with self._passed_on():
                self._learner.start(self._logs, self._echo)
                while not is_ready() and self._learner.code() is None:
                    time.sleep(POLL_S)
                return self._watch()
        finally:
            for member in (self._learner, *self._actors):
                member.send(signal.SIGKILL)
                for writer in member.writers:
                    writer.join(GRACE_S)

    def _watch(self) -> int:
        while True:
            code = self._learner.code()
            if code is not None and not self._revive(self._learner, code, only_killed=True):
                return self._end(code)
            for actor in self._actors:
                fallen = actor.code()
                if actor.process is None and not self._asked and time.monotonic() >= actor.due:
                    actor.start(self._logs, self._echo)
                elif fallen == 0 and not self._asked:  # the learner is not done, or about to be
                    actor.process, actor.due = None, time.monotonic() + RESTART_S[1]
                elif fallen and not self._asked and not self._revive(actor, fallen):
                    return self._end(fallen)
            time.sleep(POLL_S)

    def _revive(self, member: Member, code: int, *, only_killed: bool = False) -> bool:
        """Let a member begin again soon, and return whether that makes sense."""
        wait, young = RESTART_S
        member.early = member.early + 1 if time.monotonic() - member.begun < young else 0
        is_hopeless = code == USAGE or member.early >= MAX_EARLY or (only_killed and code >= 0)
        if self._asked or is_hopeless:
            return False
        self._echo(f"{member.name} ended with code {code}; it is started again")
        if member is self._learner:
            member.start(self._logs, self._echo)
        else:
            member.process, member.due = None, time.monotonic() + wait
        return True

    def _end(self, code: int) -> int:
        """Let all end: of a learner that is done its actors know, and others are asked soon; else all are asked."""
        if code != 0:
            self._learner.send(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while any(member.process is not None and member.code() is None for member in (self._learner, *self._actors)):
            if code != 0 or time.monotonic() > deadline - 0.9 * GRACE_S:
                for actor in self._actors:
                    actor.send(signal.SIGTERM)
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S * 10)
        return code if code >= 0 else 128 - code  # killed by a signal: as a shell says it

    @contextmanager
    def _passed_on(self) -> Iterator[None]:
        """Pass the first of the two signals on while the block runs; a second one kills."""

        def handle(number: int, _: FrameType | None) -> None:
            for member in (self._learner, *self._actors):
                member.send(signal.SIGKILL if self._asked else number)
            self._asked = number

        with handling((signal.SIGINT, signal.SIGTERM), handle):
            yield
