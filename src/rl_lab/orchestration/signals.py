"""SIGINT and SIGTERM ask a run to checkpoint and leave at the next safe point; a second one leaves at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The run stopped on request, after a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


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
def stop_on_signals(request: StopRequest) -> Iterator[None]:
    """Route the two signals to `request` while the block runs; outside the main thread they stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        for handled in HANDLED:
            signal.signal(handled, signal.SIG_DFL)
        request.ask(number)

    previous = {number: signal.signal(number, handle) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
