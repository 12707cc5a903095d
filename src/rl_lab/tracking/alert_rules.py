"""The kinds of alerts: each looks at the rows that a run writes, its own or from outside, and says what is wrong.

Rows are those of `metrics.jsonl` and `perf.jsonl`; what the machine is short of comes in rows of the same form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import inf, isfinite
from statistics import median
from typing import Any, ClassVar, Literal

from rl_lab.core.errors import ConfigError
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval
from rl_lab.tracking.sinks import Row, numbers

Response = Literal["stop", "lower_rate", "roll_back"]
FINE = ""  # nothing is wrong
FREE_MEMORY, USED_MEMORY, FREE_DISK = "perf/free_memory_mb", "perf/used_memory_mb", "perf/free_disk_mb"
SILENCE, IS_GONE = "watch/silent_s", "watch/is_gone"  # only an onlooker can say it
_PAUSES = ("perf/share_evaluate", "perf/share_checkpoint", "perf/share_log")  # time that is not training
_OWN_AFFAIRS = ("collect/", "eval/", "perf/")  # what was not learned may be NaN: a run goes on with it
_FEW_RATES = 5  # before there is a median to speak of


class Rule(ABC):
    """Remembers what it must of the rows, and judges each.

    Attributes:
        responses: What a run can do about it.
        needs_machine: Whether it asks what the machine is short of.
        patience: Env steps after which it is told again that something is still wrong; None: once is enough.
    """

    responses: ClassVar[tuple[Response, ...]] = ("stop",)
    needs_machine: ClassVar[bool] = False
    metric: str = ""
    patience: int | None = None

    @abstractmethod
    def look(self, row: Row) -> str | None:
        """Return what is wrong in a line, FINE when nothing is, or None when the row says nothing about it."""

    def get_state(self) -> dict[str, Any]:
        """Return what it remembers of earlier rows."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027  (most remember nothing)
        """Restore what `get_state` returned."""


class Nan(Rule):
    """A metric, or anything that was learned, is NaN or infinite.

    Args:
        metric: Of which metrics; `*` stands for any part of a name, but collect/, eval/ and perf/ must be said.
    """

    responses = ("stop", "roll_back")

    def __init__(self, metric: str = "*") -> None:
        self.metric = metric
        self._left_out = tuple(prefix for prefix in _OWN_AFFAIRS if not metric.startswith(prefix))

    def look(self, row: Row) -> str | None:
        """Judge every metric that is meant."""
        named = {key: value for key, value in numbers(row).items() if fnmatchcase(key, self.metric)}
        meant = {key: value for key, value in named.items() if not key.startswith(self._left_out)}
        wrong = next((key for key, value in meant.items() if not isfinite(value)), None)
        if not meant:
            return None
        return FINE if wrong is None else f"{wrong} is {meant[wrong]}"


class Stalled(Rule):
    """A metric has not improved for a while; it is told again after as long.

    Args:
        metric: Name, such as eval/return.
        steps: Env steps without an improvement.
        goal: Whether a higher (max) or a lower (min) value is better.
        min_change: What counts as an improvement.
        after: Env steps before it looks at all.
    """

    responses = ("stop", "lower_rate")

    def __init__(
        self,
        metric: str,
        steps: Count,
        goal: Literal["max", "min"] = "max",
        min_change: NonNegative = 0.0,
        after: Natural = 0,
    ) -> None:
        self.metric, self.goal, self.min_change, self.after = metric, goal, min_change, after
        self.steps = self.patience = steps
        self._best, self._since = -inf, 0

    def look(self, row: Row) -> str | None:
        """Compare with the best value so far; NaN and infinity are passed over."""
        step, value = row["step"], row.get(self.metric)
        if value is None or not isfinite(value) or step < self.after:
            return None
        better = value if self.goal == "max" else -value
        if better > self._best + self.min_change or self._best == -inf:
            self._best, self._since = better, step
            return FINE
        if step - self._since < self.steps:
            return FINE
        best = self._best if self.goal == "max" else -self._best
        return f"{self.metric} has not improved for {step - self._since:,} steps (best {best:.6g}, now {value:.6g})"

    def get_state(self) -> dict[str, Any]:
        """Return the best value and when that was."""
        return {"best": self._best, "since": self._since}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._best, self._since = state["best"], state["since"]


class Below(Rule):
    """A metric is lower than a value.

    Args:
        metric: Name, such as eval/return.
        value: The lowest that is right.
        after: Env steps before it looks at all.
    """

    responses = ("stop", "lower_rate", "roll_back")

    def __init__(self, metric: str, value: float, after: Natural = 0) -> None:
        self.metric, self.value, self.after = metric, value, after

    def look(self, row: Row) -> str | None:
        """Compare with the value."""
        found = row.get(self.metric)
        if found is None or row["step"] < self.after:
            return None
        return f"{self.metric} is {found:.6g}, below {self.value:.6g}" if found < self.value else FINE


class Above(Below):
    """A metric is higher than a value.

    Args:
        metric: Name, such as train/approx_kl.
        value: The highest that is right.
        after: Env steps before it looks at all.
    """

    def look(self, row: Row) -> str | None:
        """Compare with the value."""
        found = row.get(self.metric)
        if found is None or row["step"] < self.after:
            return None
        return f"{self.metric} is {found:.6g}, above {self.value:.6g}" if found > self.value else FINE


class Memory(Rule):
    """Memory of the host runs out.

    Args:
        free_mb: Megabytes that must be free; in a container, of what it may take.
        used_mb: Megabytes that the run's first process may take; null: any.
    """

    needs_machine = True

    def __init__(self, free_mb: NonNegative = 500.0, used_mb: Positive | None = None) -> None:
        self.free_mb, self.used_mb = free_mb, used_mb

    def look(self, row: Row) -> str | None:
        """Compare with the limits."""
        free, used = row.get(FREE_MEMORY), row.get(USED_MEMORY)
        if free is not None and free < self.free_mb:
            return f"{free:,.0f} MB of memory are free, less than {self.free_mb:,.0f}"
        if used is not None and self.used_mb is not None and used > self.used_mb:
            return f"the run takes {used:,.0f} MB of memory, more than {self.used_mb:,.0f}"
        return None if free is None and used is None else FINE


class Disk(Rule):
    """The disk of the run's directory fills up.

    Args:
        free_mb: Megabytes that must be free.
    """

    needs_machine = True

    def __init__(self, free_mb: NonNegative = 1000.0) -> None:
        self.free_mb = free_mb

    def look(self, row: Row) -> str | None:
        """Compare with the limit."""
        free = row.get(FREE_DISK)
        if free is None:
            return None
        return f"{free:,.0f} MB of the disk are free, less than {self.free_mb:,.0f}" if free < self.free_mb else FINE


class Heartbeat(Rule):
    """The run is dead or hangs. Nothing of it can say so: `lab runs watch` does.

    Args:
        silent_s: Seconds without a sign of life; a run gives one every few seconds, but not within one long action.
    """

    responses = ()

    def __init__(self, silent_s: Positive = 300.0) -> None:
        self.silent_s = silent_s

    def look(self, row: Row) -> str | None:
        """Compare how long it has been silent."""
        if row.get(IS_GONE):
            return "its process is gone, without a word"
        silence = row.get(SILENCE)
        if silence is None:
            return None
        return f"no sign of life for {silence:,.0f} s" if silence > self.silent_s else FINE


class Slow(Rule):
    """Training is slower than it was, pauses for evaluations and checkpoints not counted.

    Args:
        share: Of the median rate of the rows before.
        rows: How many rows before.
        metric: The rate.
    """

    def __init__(
        self,
        share: UnitInterval = 0.5,
        rows: Count = 20,
        metric: Literal["perf/env_steps_per_s", "perf/updates_per_s"] = "perf/env_steps_per_s",
    ) -> None:
        if rows < _FEW_RATES:
            raise ConfigError(f"rows must be {_FEW_RATES} or more, not {rows}")
        self.share, self.rows, self.metric = share, rows, metric
        self._rates: list[float] = []

    def look(self, row: Row) -> str | None:
        """Compare with the median; a row in which nothing was done says nothing."""
        gross = row.get(self.metric)
        if not gross:
            return None
        rate = gross / max(1e-3, 1.0 - sum(row.get(key, 0.0) for key in _PAUSES))
        before, self._rates = self._rates, [*self._rates, rate][-self.rows :]
        if len(before) < _FEW_RATES:
            return FINE
        usual = median(before)
        name = self.metric.removeprefix("perf/").replace("_per_s", "/s").replace("_", " ")
        return f"{rate:,.1f} {name}, usually {usual:,.1f}" if rate < self.share * usual else FINE

    def get_state(self) -> dict[str, Any]:
        """Return the rates."""
        return {"rates": self._rates}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._rates = list(state["rates"])[-self.rows :]


KINDS: dict[str, type[Rule]] = {
    "nan": Nan,
    "stalled": Stalled,
    "below": Below,
    "above": Above,
    "memory": Memory,
    "disk": Disk,
    "heartbeat": Heartbeat,
    "slow": Slow,
}
