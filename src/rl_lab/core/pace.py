"""Real time for what could go faster: a simulation that a person watches."""

from __future__ import annotations

import time


class Pace:
    """Real time: every call returns a step later than the one before.

    Args:
        dt: Seconds of a step.
    """

    def __init__(self, dt: float) -> None:
        self._dt, self._next = dt, time.monotonic()

    def wait(self) -> bool:
        """Wait for the next step and return True; what was too slow is not caught up with."""
        now = time.monotonic()
        self._next = max(self._next + self._dt, now)
        time.sleep(self._next - now)
        return True
