"""Where the wall time goes. Two clock readings per timer; time inside a nested timer counts for the inner one only."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType


class Timer:
    """Adds the time of its `with` block to one name of a WallClock; it may be nested in itself."""

    __slots__ = ("_clock", "_name")

    def __init__(self, clock: WallClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.stack.append([perf_counter(), 0.0])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = self._clock.stack
        start, nested = stack.pop()
        elapsed = perf_counter() - start
        self._clock.seconds[self._name] += elapsed - nested
        if stack:
            stack[-1][1] += elapsed


class WallClock:
    """The split of wall time since the last `report`, and the rates over it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.stack: list[list[float]] = []  # of running timers: [start, time in nested ones]
        self._timers: dict[str, Timer] = {}
        self.restart()

    def restart(self, elapsed_s: float = 0.0, env_steps: int = 0, updates: int = 0) -> None:
        """Begin to count here, after `elapsed_s` seconds of earlier processes."""
        self._before = elapsed_s
        self._start = self._mark = perf_counter()
        self._env_steps, self._updates = env_steps, updates
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def timer(self, name: str) -> Timer:
        """Return the timer of this name."""
        if name not in self._timers:
            self._timers[name] = Timer(self, name)
            self.seconds[name] = 0.0
        return self._timers[name]

    @property
    def elapsed_s(self) -> float:
        """Return the wall time of the run, earlier processes included."""
        return self._before + perf_counter() - self._start

    def report(self, env_steps: int, updates: int) -> dict[str, float]:
        """Return rates and shares since the last report, and begin the next interval."""
        now = perf_counter()
        interval = max(now - self._mark, 1e-9)
        row = {
            "perf/elapsed_s": self.elapsed_s,
            "perf/env_steps_per_s": (env_steps - self._env_steps) / interval,
            "perf/updates_per_s": (updates - self._updates) / interval,
        }
        shares = {name: seconds / interval for name, seconds in self.seconds.items()}
        row |= {f"perf/share_{name}": share for name, share in shares.items()}
        row["perf/share_other"] = max(0.0, 1.0 - sum(shares.values()))
        self._mark, self._env_steps, self._updates = now, env_steps, updates
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return row
