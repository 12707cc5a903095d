"""When to checkpoint: by env steps, by updates, by minutes, whichever comes first."""

from __future__ import annotations

import time
from collections.abc import Callable

from rl_lab.core.clocks import Every
from rl_lab.core.context import Counters


class CheckpointCadence:
    """Three clocks, each of which may be off (None). Minutes are wall time: they never touch what is computed."""

    def __init__(
        self,
        steps: int | None = None,
        updates: int | None = None,
        minutes: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = Every(steps) if steps else None
        self._updates = Every(updates) if updates else None
        self._seconds = minutes * 60 if minutes else None
        self._now = now
        self._saved_at = now()

    def is_due(self, counters: Counters) -> bool:
        """Return whether a checkpoint is due."""
        return (
            (self._steps is not None and self._steps.is_due(counters.env_steps))
            or (self._updates is not None and self._updates.is_due(counters.updates))
            or (self._seconds is not None and self._now() - self._saved_at >= self._seconds)
        )

    def steps_until_due(self, counters: Counters) -> int | None:
        """Return how many env steps there are until the step clock fires, or None when it is off."""
        return None if self._steps is None else self._steps.until_due(counters.env_steps)

    def mark(self, counters: Counters) -> None:
        """Count from here: a checkpoint was made or restored now."""
        if self._steps is not None:
            self._steps(counters.env_steps)
        if self._updates is not None:
            self._updates(counters.updates)
        self._saved_at = self._now()
