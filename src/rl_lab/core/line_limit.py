"""How many lines of a log a flood may become: the first ones, then one a second with the number of those left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

EVERY_S, AT_ONCE = 1.0, 10  # a line per second, after the first ones


class LineLimit:
    """Says whether a line is written.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._credit, self._at, self._num_left_out = float(AT_ONCE), clock(), 0

    def admit(self) -> str | None:
        """Return what to write behind the line, such as ` (and 3 more)`, or None where it is left out and counted."""
        with self._lock:
            now = self._clock()
            self._credit, self._at = min(AT_ONCE, self._credit + (now - self._at) / EVERY_S), now
            if self._credit < 1.0:
                self._num_left_out += 1
                return None
            self._credit -= 1.0
            left_out, self._num_left_out = self._num_left_out, 0
        return f" (and {left_out} more)" if left_out else ""
