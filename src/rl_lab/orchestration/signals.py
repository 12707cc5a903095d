"""SIGINT and SIGTERM ask a run to checkpoint and leave at the next safe point; a second one leaves at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rl_lab.core.signal_handlers import handling

HANDLED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The run stopped on request, after a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Paused(Interrupted):
    """The run has come as far as it was asked to for now, and has left a checkpoint there."""

    def __init__(self, env_steps: int) -> None:
        Exception.__init__(self, f"paused after {env_steps} env steps")
        self.exit_code = 0


class StopRequest:
    """Remembers the first signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Return whether a stop has been asked for."""
        return self.signal is not None

    def ask(self, number: int = signal.SIGTERM) -> None:
        """Ask the run to stop at the next safe point."""
        self.signal = number


@contextmanager
def stop_on_signals(request: StopRequest, *, echo_s: float = 0.0) -> Iterator[None]:
    """Route the two signals to `request` while the block runs; outside the main thread they stay as they are.

    One that comes within `echo_s` of the first is the same: a terminal and a launcher both send it to a rank.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    first_at = 0.0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first_at
        is_second = request() and time.monotonic() - first_at >= echo_s
        if is_second or not echo_s:
            for handled in HANDLED:
                signal.signal(handled, signal.SIG_DFL)
        if is_second:
            os.kill(os.getpid(), number)
        elif not request():
            first_at = time.monotonic()
            request.ask(number)

    with handling(HANDLED, handle):
        yield


class ChildShield:
    """Keeps the two signals from processes that this thread starts meanwhile, such as compilers: they take its mask on.

    A terminal or a launcher sends a signal to all of a group. This process hears it: a thread of its own is open.
    """

    def __init__(self) -> None:
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Shield what is started from now on."""
        self._is_over.clear()
        threading.Thread(target=self._is_over.wait, name="signals", daemon=True).start()  # before: it inherits as well
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)

    def end(self) -> None:
        """Shield nothing any more."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        self._is_over.set()
