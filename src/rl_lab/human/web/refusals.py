"""Requests to the operator's page that were not answered, as lines of the log; a flood of them is one line a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rl_lab.core.line_limit import LineLimit
from rl_lab.human.web.access import Denied

HARMLESS = frozenset({404, 410})  # a browser asks for an icon; a page was left open over the end of its session
logger = logging.getLogger(__name__)


class Refusals:
    """Logs who was refused what, and why.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = LineLimit(clock)

    def add(self, address: str, request: str, denied: Denied) -> None:
        """Log one; those that come too fast are counted, and told with the next."""
        if denied.status in HARMLESS or (more := self._limit.admit()) is None:
            return
        words = "".join(letter if letter.isprintable() else " " for letter in request[:200])
        logger.warning("operator page: refused %s of %s: %d %s%s", words, address, denied.status, denied, more)
