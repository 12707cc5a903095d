"""Requests to the operator's page that were not answered, as lines of the log; a flood of them is one line a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock

from rl_lab.human.web.access import Denied

HARMLESS = frozenset({404, 410})  # a browser asks for an icon; a page was left open over the end of its session
EVERY_S, AT_ONCE = 1.0, 10  # a line per second, after the first ones
logger = logging.getLogger(__name__)


class Refusals:
    """Logs who was refused what, and why.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._credit, self._at, self._num_left_out = float(AT_ONCE), clock(), 0

    def add(self, address: str, request: str, denied: Denied) -> None:
        """Log one; those that come too fast are counted, and told with the next."""
        if denied.status in HARMLESS:
            return
        with self._lock:
            now = self._clock()
            self._credit, self._at = min(AT_ONCE, self._credit + (now - self._at) / EVERY_S), now
            if self._credit < 1.0:
                self._num_left_out += 1
                return
            self._credit -= 1.0
            left_out, self._num_left_out = self._num_left_out, 0
        words = "".join(letter if letter.isprintable() else " " for letter in request[:200])
        more = f" (and {left_out} more)" if left_out else ""
        logger.warning("operator page: refused %s of %s: %d %s%s", words, address, denied.status, denied, more)
