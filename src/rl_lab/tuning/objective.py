"""What a trial is worth: a number per run, read from its metrics as they grow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rl_lab.core.errors import ConfigError, unknown_name


class GrowingMetric:
    """Reads the values of one metric from a `metrics.jsonl` that is written, and after a kill cut back, meanwhile."""

    def __init__(self, file: Path, metric: str) -> None:
        self._file, self._metric, self._offset = file, metric, 0
        self.values: list[float] = []
        self.names: set[str] = set()

    @property
    def is_known(self) -> bool:
        """Return whether a row had the metric, be it without a finite value."""
        return self._metric in self.names

    def update(self) -> list[float]:
        """Return all values so far, in order."""
        size = self._file.stat().st_size if self._file.is_file() else 0
        if size < self._offset:
            self._offset, self.values = 0, []
        if size > self._offset:
            with open(self._file, "rb") as file:
                file.seek(self._offset)
                whole = file.read(size - self._offset).rpartition(b"\n")[0]
            for line in whole.splitlines():
                self._take(json.loads(line))
            self._offset += len(whole) + 1 if whole else 0
        return self.values

    def _take(self, row: dict[str, object]) -> None:
        self.names |= {key for key in row if "/" in key}
        value = row.get(self._metric)
        if isinstance(value, int | float):
            self.values.append(float(value))

    def score(self, kind: str, goal: str) -> float:
        """Return what the run is worth: its last value, its best one, or the mean."""
        values = [value for value in self.update() if np.isfinite(value)]
        if not values and self.is_known:
            raise ConfigError(f"tune.metric: {self._metric} is finite in no row of {self._file}")
        if not values:
            raise ConfigError(
                f"tune.metric: no row of {self._file} has it: " + unknown_name("metric", self._metric, self.names)
            )
        if kind == "last":
            return values[-1]
        if kind == "mean":
            return float(np.mean(values))
        return max(values) if goal == "maximize" else min(values)
