"""What a peer may ask for, however well it has identified itself."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what one peer can make the other do."""

    message_bytes: int = 1 << 22  # of a message; a step with its frame must fit
    unread_bytes: int = 1 << 28  # of steps that wait in the log for the learner; then actors wait
    weights_bytes: int = 1 << 34  # of a version of the weights
    steps_per_s: float = 20_000.0  # of one actor; more is slowed down, not refused
    hellos_per_s: float = 5.0  # of one actor; more are refused
    actors: int = 32  # at a time


class Bucket:
    """A rate: `rate` a second on average, and a second's worth at once."""

    def __init__(self, rate: float) -> None:
        self._rate, self._level, self._at = rate, rate, time.monotonic()
        self._guard = threading.Lock()

    def take(self, count: float) -> float:
        """Take so many and return how long to wait for them, in seconds."""
        with self._guard:
            now = time.monotonic()
            self._level = min(self._rate, self._level + (now - self._at) * self._rate) - count
            self._at = now
            return max(0.0, -self._level / self._rate)
