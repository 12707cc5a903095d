"""Handlers of signals for the time of a block."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handling(numbers: Iterable[int], handle: Handler) -> Iterator[None]:
    """Call `handle` for these signals while the block runs, in the main thread; then what was before."""
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
