"""The process that looks after a launch on this machine: it outlives the terminal and runs the commands in turn.

It holds the launch's lock as long as it lives, so that a process number which the system has given to somebody else
is never taken for it. A command whose keeper dies is asked to stop, and leaves with a checkpoint.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rl_lab.core.errors import LabError
from rl_lab.core.signal_handlers import handling
from rl_lab.launching.record import LOG, Launch, LaunchError, read
from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.lock import exclusive_lock, is_locked, read_owner
from rl_lab.tuning.trial_process import TrialProcess, start_process

LOCK = "lock"
CODES = "codes.json"
POLL_S = 0.1
LOCK_WAIT_S = 10.0  # those who ask whether it runs hold the lock for a moment
STOPPED = (130, 143)  # exit codes of a command that was asked to stop
_READY = b"ready"


def start(launch: Launch) -> None:
    """Start the keeper of a launch, detached from this process and its terminal; return once it is on duty."""
    if is_locked(launch.path / LOCK):
        raise LaunchError(f"launch {launch.name} is running already (lab launch status {launch.name})")
    receiver, sender = os.pipe()
    command = [sys.executable, "-m", "rl_lab.launching.keeper", str(launch.path), str(sender)]
    with open(launch.path / LOG, "ab") as log, os.fdopen(receiver, "rb") as answer:
        try:
            subprocess.run(
                ["sh", "-c", '"$@" &', "sh", *command],  # no child of this process, which need not wait for it
                check=True,
                cwd=launch.project,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[sender],
                start_new_session=True,
            )
        finally:
            os.close(sender)
        said = answer.read()
    if said != _READY:
        raise LaunchError(said.decode() or f"launch {launch.name} did not start; {launch.path / LOG} says why")


def stop(launch: Launch) -> bool:
    """Ask the keeper to stop, and return whether there was one; a second request ends its command at once."""
    lock = launch.path / LOCK
    owner = read_owner(lock)
    if owner is None or not is_locked(lock):
        return False
    if owner["host"] != socket.gethostname():
        raise LaunchError(f"launch {launch.name} runs on host {owner['host']}: stop it there")
    try:
        return _terminate(int(str(owner["pid"])), lambda: is_locked(lock) and read_owner(lock) == owner)
    except ProcessLookupError:
        return False


def _terminate(pid: int, is_its: Callable[[], bool]) -> bool:
    """Send SIGTERM to a process if the number is its own, and cannot become another's in between."""
    if sys.platform != "linux":
        os.kill(pid, signal.SIGTERM)
        return True
    process = os.pidfd_open(pid)
    try:
        if not is_its():
            return False
        signal.pidfd_send_signal(process, signal.SIGTERM)
    finally:
        os.close(process)
    return True


def wait(launch: Launch, timeout_s: float) -> bool:
    """Return whether the keeper has ended, after so many seconds at most."""
    end = time.monotonic() + timeout_s
    while is_locked(launch.path / LOCK):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


@dataclass(frozen=True)
class State:
    """How a launch on this machine stands: new, running, done, stopped, failed or killed; and its commands."""

    word: str
    codes: tuple[int | None, ...]  # of the commands that have ended


def state_of(launch: Launch) -> State:
    """Return how a launch stands, from its files and its lock."""
    is_running, codes = is_locked(launch.path / LOCK), read_codes(launch)
    if is_running:
        return State("running", codes)
    ended = [code for code in codes if code is not None]
    if len(ended) == len(codes) and not any(ended):
        return State("done", codes)
    if any(code in STOPPED for code in ended):
        return State("stopped", codes)
    if any(ended) and len(ended) == len(codes):
        return State("failed", codes)
    return State("killed" if (launch.path / LOCK).exists() else "new", codes)


def read_codes(launch: Launch) -> tuple[int | None, ...]:
    """Return the exit code of every command, None for those that have not ended."""
    try:
        codes = json.loads((launch.path / CODES).read_text())
    except (OSError, ValueError):
        codes = []
    return tuple(codes) if len(codes) == len(launch.tasks) else (None,) * len(launch.tasks)


class Keeper:
    """Runs the commands of a launch one after another."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._asked = 0
        self._child: TrialProcess | None = None

    def run(self) -> None:
        """Run what is not done yet; stop when asked to, and go on when a command fails."""
        codes = [0 if code == 0 else None for code in read_codes(self._launch)]
        self._write(codes)
        for number, task in enumerate(self._launch.tasks):
            if codes[number] is None:
                codes[number] = STOPPED[-1] if self._asked else self._run(task)
                self._write(codes)

    def _run(self, task: Sequence[str]) -> int:
        log = self._launch.path / LOG
        with open(log, "a") as file:
            file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} lab {shlex.join(task)}\n")
        self._child = start_process(task, {"PYTHONUNBUFFERED": "1"}, log)
        if self._asked:  # while it was being started
            self._child.terminate()
        while (code := self._child.poll()) is None:
            time.sleep(POLL_S)
        self._child = None
        return code if code >= 0 else 128 - code  # killed by a signal: as a shell says it

    def pass_on(self, number: int, _: FrameType | None) -> None:
        """Pass a request to stop on to the command; the second one ends it."""
        self._asked += 1
        if self._child is not None:
            self._child.terminate() if self._asked == 1 else self._child.kill()

    def _write(self, codes: Sequence[int | None]) -> None:
        replace_file(self._launch.path / CODES, json.dumps(codes) + "\n")


def main(path: str, descriptor: int) -> None:
    """Be the keeper of the launch in `path`; whoever started it reads from the other end of `descriptor`."""
    try:
        launch = read(Path(path).parent, Path(path).name)
        keeper = Keeper(launch)
        lock = exclusive_lock(launch.path / LOCK, wait_s=LOCK_WAIT_S)
        with handling((signal.SIGINT, signal.SIGTERM), keeper.pass_on), lock:
            os.write(descriptor, _READY)
            os.close(descriptor)
            descriptor = -1
            keeper.run()
    except LabError as error:
        if descriptor < 0:
            raise
        os.write(descriptor, str(error).encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
