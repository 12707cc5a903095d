"""Stale commands never reach a robot: whoever is too slow, the robot holds its pose.

A command is as old as what was seen when it was decided. The watchdog runs beside whatever decides (a policy, a learner
that is asked over the network, an operator), so that the robot stands still also while nothing comes at all. Time is
the monotonic clock's: a wall clock that jumps changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_RETRY_S = 0.1  # between two tries to hold a robot that did not listen
logger = logging.getLogger(__name__)


class Watchdog:
    """Calls `hold` when `max_age_s` have passed since the robot was looked at and no command has come.

    A robot that does not listen is told again and again until it does, or a command comes.

    Args:
        hold: Lets the robot stand still; called from a thread, never while a command is carried out.
        max_age_s: Seconds after which a command is stale.
    """

    def __init__(self, hold: Callable[[], None], max_age_s: float) -> None:
        self._hold, self.max_age_s = hold, max_age_s
        self._changed = threading.Condition()
        self._deadline: float | None = None  # monotonic; None: nothing is waited for
        self._is_closed, self.num_holds = False, 0
        self._is_deaf = False  # the robot, at the last try
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def saw(self) -> None:
        """Wait for a command from now on: the robot has just been looked at, by the environment or by a person."""
        with self._changed:
            self._deadline = time.monotonic() + self.max_age_s
            self._changed.notify()

    def claim(self) -> bool:
        """Return whether a command comes in time; from here to the next `saw` the watchdog does nothing."""
        with self._changed:
            is_timely = self._deadline is not None and time.monotonic() < self._deadline
            self._deadline = None
            return is_timely

    def expire(self) -> None:
        """Hold from now on, until the robot listens or a command comes: somebody else could not make it hold."""
        with self._changed:
            self._deadline = time.monotonic()
            self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is None or left > 0:
                    self._changed.wait(left)
                elif self._has_held():
                    self._deadline, self.num_holds = None, self.num_holds + 1
                else:
                    self._changed.wait(_RETRY_S)

    def _has_held(self) -> bool:
        """Tell the robot to hold, and return whether it was told; whatever a driver raises, the watch goes on."""
        try:
            self._hold()
        except Exception as error:  # noqa: BLE001  (a driver is foreign code, and without the watch nothing holds)
            if not self._is_deaf:
                logger.error("the robot does not hold, and is told again: %s: %s", type(error).__name__, error)
            self._is_deaf = True
            return False
        self._is_deaf = False
        return True
