"""Who was refused, and why, as lines of the log; a flood of them is one line a second."""

from __future__ import annotations

import logging

from rl_lab.core.line_limit import LineLimit

logger = logging.getLogger(__name__)


class Refusals:
    """Logs one line for a refusal; those that come too fast are counted, and told with the next."""

    def __init__(self) -> None:
        self._limit = LineLimit()

    def add(self, peer: str, text: str) -> str:
        """Log why a peer was refused, and return that as one line; parts of it may be the peer's words."""
        line = "".join(letter if letter.isprintable() else " " for letter in text[:1000])
        if (more := self._limit.admit()) is not None:
            logger.warning("refused: %s (%s)%s", line, peer, more)
        return line
