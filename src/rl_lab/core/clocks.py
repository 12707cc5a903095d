"""Clocks that fire on counters: unlike `step % n == 0` they do not miss when a counter jumps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache


@dataclass
class Every:
    """Fires once each time the counter has passed another multiple of `interval`; never at zero."""

    interval: int
    last: int = 0  # number of the last multiple that was passed

    def is_due(self, counter: int) -> bool:
        """Return whether a new multiple has been passed, without consuming it."""
        return counter // self.interval > self.last

    def __call__(self, counter: int) -> bool:
        """Return whether it fires at this count, and consume it."""
        due = self.is_due(counter)
        self.last = counter // self.interval
        return due

    def until_due(self, counter: int) -> int:
        """Return how far the counter is from firing."""
        return max(0, (self.last + 1) * self.interval - counter)


@dataclass
class Ratio:
    """Turns env steps into whole runs of something at `ratio` runs per step, exactly: runs = floor(ratio * steps)."""

    ratio: float
    steps: int = 0
    runs: int = 0

    def __call__(self, steps: int) -> int:
        """Add `steps` and return how many runs they newly pay for."""
        self.steps += steps
        exact = _as_written(self.ratio)
        due = exact.numerator * self.steps // exact.denominator - self.runs
        self.runs += due
        return due


@cache
def _as_written(ratio: float) -> Fraction:
    """Return 1/10 for 0.1, which is not what the float holds."""
    return Fraction(str(ratio))


@dataclass
class Once:
    """Fires the first time it is asked."""

    fired: bool = False

    def __call__(self) -> bool:
        """Return True once."""
        fired, self.fired = self.fired, True
        return not fired
