"""The tracker of a rank for which another one writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_lab.core.context import Counters
from rl_lab.core.metrics import Metrics
from rl_lab.tracking.tracker import Tracker


class Follower(Tracker):
    """Sums, keeps clocks and gives its part of every row to the first rank; it has no files and no sinks."""

    def open(self, total_steps: int, counters: Counters | None = None) -> None:
        """Start the clock."""
        counters = counters or Counters()
        self._wall.restart(0.0, counters.env_steps, counters.updates)

    def write(self, group: str, metrics: Metrics, counters: Counters, phase_name: str) -> dict[str, float]:
        """Leave it to the first rank."""
        return {}

    def event(self, kind: str, **fields: Any) -> None:
        """Leave it to the first rank, where the same happens."""

    def get_state(self) -> dict[str, Any]:
        """Return sums and clocks."""
        return self._kept()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._keep(state)

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Nothing was opened."""

    def _write_row(self, row: dict[str, Any]) -> None:
        """Leave it to the first rank."""

    def _write_perf(self, perf: dict[str, Any]) -> None:
        """Leave it to the first rank."""

    def _save_picture(self, key: str, step: int, png: bytes) -> None:
        """Leave it to the first rank."""

    def _show_progress(self, counters: Counters, phase_name: str) -> None:
        """Leave it to the first rank."""
