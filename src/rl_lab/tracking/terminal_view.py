"""What is known of a running run at one moment, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable

from rl_lab.tracking.sinks import Row, numbers


class RunView:
    """Position, rates and the last value of every metric."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.total_steps, self.start_step, self.step, self.updates = 0, 0, 0, 0
        self.phase = ""
        self.metrics: dict[str, float] = {}
        self.steps_per_s, self.updates_per_s = 0.0, 0.0
        self._start = clock()

    def begin(self, total_steps: int, start_step: int) -> None:
        """Start the clock at this step."""
        self.total_steps, self.start_step, self.step = total_steps, start_step, start_step
        self._start = self._clock()

    def update(self, row: Row) -> None:
        """Take a row or a bare position."""
        self.step, self.updates, self.phase = row["step"], row["updates"], row["phase"]
        self.metrics |= numbers(row)

    def rates(self, row: Row) -> None:
        """Take the rates of a perf row."""
        self.steps_per_s, self.updates_per_s = row["perf/env_steps_per_s"], row["perf/updates_per_s"]

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since `begin`."""
        return self._clock() - self._start

    @property
    def fraction(self) -> float:
        """Return how much of the run is done, 0 to 1."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else 0.0

    @property
    def eta_s(self) -> float:
        """Return the seconds to go at the mean rate of this process."""
        done = self.step - self.start_step
        return self.elapsed_s * max(0, self.total_steps - self.step) / done if done > 0 else math.inf


def duration(seconds: float) -> str:
    """Return h:mm:ss."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def number(value: float) -> str:
    """Return a number with four digits that matter."""
    return f"{value:,.2f}" if 1 <= abs(value) < 1e6 else f"{value:.4g}"
