"""What a person sees of a sweep: a live table on a terminal, a line per event everywhere else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_lab.tuning.plan import distinct
from rl_lab.tuning.sweep_directory import SweepDirectory, Trial

_REFRESH_S = 0.5
_FINAL = ("done", "failed")
_ORDER = {"running": 0, "stopped": 1, "failed": 2, "done": 3, "waiting": 4}


class SweepTable:
    """The trials with their values, states, env steps and the metric that is looked at."""

    def __init__(
        self,
        directory: SweepDirectory,
        trials: Callable[[], Sequence[Trial]],
        metric: str,
        console: Console | None,
    ) -> None:
        self._directory, self._trials, self._metric, self._console = directory, trials, metric, console
        self._final: dict[Trial, dict[str, Any]] = {}  # rows of trials that do not change any more
        is_live = console is not None and console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False) if is_live else None
        self._last_shown = 0.0

    def shown(self) -> AbstractContextManager[object]:
        """Show the table while a block runs."""
        return self._live if self._live is not None else nullcontext()

    def tell(self, trial: Trial, state: str, message: str) -> None:
        """Say what became of a trial."""
        self._final.pop(trial, None)
        row = self._row(trial)
        score = "" if row["metric"] is None else f", {self._metric} {row['metric']:.6g}"
        why = f": {message}" if message else ""
        if self._console is not None:
            done = sum(self._directory.state(each) == "done" for each in self._trials())
            text = f"{trial.name} {state}{score}{why} ({done} of {len(self._trials())} done)"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self) -> None:
        """Bring the live table up to date, twice a second at most."""
        if self._live is not None and time.monotonic() - self._last_shown >= _REFRESH_S:
            self._last_shown = time.monotonic()
            limit = max(5, (self._console.height if self._console else 25) - 8)
            self._live.update(self._table(limit), refresh=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return name, values, state, env steps and metric of every trial."""
        return [self._row(trial) for trial in self._trials()]

    def print_all(self) -> None:
        """Print the whole table."""
        if self._console is not None:
            self._console.print(self._table(None))

    def _row(self, trial: Trial) -> dict[str, Any]:
        if trial not in self._final:
            directory = self._directory
            state = directory.state(trial)
            row: dict[str, Any] = {"trial": trial.name, "values": trial.values, "state": state}
            row |= {"run": str(directory.run_path(trial)), "env_steps": directory.steps(trial)}
            row["metric"] = directory.last_value(trial, self._metric)
            if state == "failed":
                row["error"] = directory.failure(trial)
            if state not in _FINAL:
                return row
            self._final[trial] = row
        return self._final[trial]

    def _table(self, limit: int | None) -> Table:
        rows = self.rows()
        counts = Counter(row["state"] for row in rows)
        title = ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])
        keys = distinct([trial.values for trial in self._trials()]) if rows else []
        table = Table(
            "trial", *(key.rpartition(".")[2] for key in keys), "state", "env steps", self._metric, title=title
        )
        if limit is not None and len(rows) > limit:
            rows = sorted(rows, key=lambda row: _ORDER[row["state"]])[:limit]
        for row in rows:
            table.add_row(*map(Text, _cells(row, keys)))  # a value in brackets is no markup
        return table


def _cells(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    values = [_short(row["values"].get(key)) for key in keys]
    metric = "" if row["metric"] is None else f"{row['metric']:.6g}"
    return [row["trial"], *values, row["state"], f"{row['env_steps']:,}", metric]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
