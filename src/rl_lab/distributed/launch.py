"""Starts the processes of a run on this machine, as `torchrun` does, and ends as they end."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from rl_lab.core.errors import LabError
from rl_lab.core.signal_handlers import handling

GRACE_S = 30.0  # for the others to end, once one has failed; then they are killed
POLL_S = 0.05
PORTS = range(20_000, 32_000)  # Linux gives outgoing connections those from 32768 on
Process = subprocess.Popen[bytes]


def launch(command: Sequence[str], count: int) -> int:
    """Run a command in `count` processes that know of each other; return the first exit code that is not 0.

    SIGINT and SIGTERM are passed on. When one process fails the others are asked to leave, and soon made to.
    """
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children: list[Process] = []
    try:
        with _passed_on(children) as pass_on:  # before the first one starts: no signal may come too early
            for rank in range(count):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                # A session of their own: a terminal's Ctrl-C reaches them through this process, and only once.
                children.append(subprocess.Popen(command, env=os.environ | shared | own, start_new_session=True))
            pass_on()
            return _wait(children)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def _wait(children: Sequence[Process]) -> int:
    """Return when all have ended; once one has failed, the others do not have long."""
    code, deadline = 0, float("inf")
    while time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        if code == 0 and (code := next(filter(None, codes), 0)) != 0:
            deadline = time.monotonic() + GRACE_S
            _signal(children, signal.SIGTERM)
        if None not in codes:
            break
        time.sleep(POLL_S)
    return code if code >= 0 else 128 - code  # killed by a signal: as a shell says it


@contextmanager
def _passed_on(children: Sequence[Process]) -> Iterator[Callable[[], None]]:
    """Pass the first of the two signals on to the children while the block runs; a second one kills them.

    Signals wait until what is yielded is called, once all children are there: one that has just started would not hear.
    """
    given: deque[int] = deque()
    are_started = was_asked = False

    def pass_on() -> None:
        nonlocal are_started, was_asked
        are_started = True
        with suppress(IndexError):  # it may be interrupted by itself at any point
            while True:
                number = given.popleft()
                _signal(children, signal.SIGKILL if was_asked else number)
                was_asked = True

    def handle(number: int, _: FrameType | None) -> None:
        given.append(number)
        if are_started:
            pass_on()

    with handling((signal.SIGINT, signal.SIGTERM), handle):
        yield pass_on


def _signal(children: Sequence[Process], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def free_port() -> int:
    """Return a port that nobody listens on, and that no outgoing connection will be given before it is."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise LabError(f"no port between {PORTS.start} and {PORTS.stop} is free")
