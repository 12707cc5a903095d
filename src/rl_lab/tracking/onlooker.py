"""Looks at a run from another process: at what it has written since the last look, and whether it still lives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_lab.tracking.alarm import Alarm, Alert
from rl_lab.tracking.alert_rules import IS_GONE, SILENCE
from rl_lab.tracking.run_directory import RunDirectory


class NewRows:
    """Reads a file of rows from where it was read to before."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._last = path, 0, b""

    def was_cut(self) -> bool:
        """Return whether what was read is not there any more: the run has gone back to a checkpoint."""
        if not self._path.is_file():
            return False
        with open(self._path, "rb") as file:  # it may have grown again since: its size alone does not tell
            file.seek(self._offset - len(self._last))
            return file.read(len(self._last)) != self._last

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the new rows; half a line waits for its end."""
        if not self._path.is_file():
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset, self._last = self._offset + len(line), line
                try:
                    row = json.loads(line)
                except ValueError:  # damaged: no reason to overlook the others
                    continue
                if isinstance(row, dict) and "step" in row:
                    yield row


class Onlooker:
    """Lets the rules of a run, or one's own, look at it.

    Args:
        run: The run, which is only read.
        make_alarms: Makes them; anew when the run has gone back.
    """

    def __init__(self, run: RunDirectory, make_alarms: Callable[[], Sequence[Alarm]]) -> None:
        self.run, self._make_alarms = run, make_alarms
        self._begin()

    def _begin(self) -> None:
        self.alarms = list(self._make_alarms())
        self._files = [NewRows(self.run.metrics_file), NewRows(self.run.perf_file)]
        self._position: dict[str, Any] = {"step": 0, "updates": 0}

    def look(self, machine: Mapping[str, float], now: float) -> list[tuple[Alarm, Alert]]:
        """Return what has become wrong since the last look; `machine` is what that is short of, `now` the time."""
        if any(file.was_cut() for file in self._files):
            self._begin()
        rows = [row for file in self._files for row in file.read()]
        self._position |= {key: rows[-1][key] for key in self._position if rows and key in rows[-1]}
        rows.append({**self._position, **self._signs_of_life(now), **machine})
        found = ((alarm, alarm.look(row, self.run.path.name)) for row in rows for alarm in self.alarms)
        return [(alarm, alert) for alarm, alert in found if alert is not None]

    def _signs_of_life(self, now: float) -> dict[str, float]:
        """Return how long a run that should live has been silent, or that its process is gone."""
        status = self.run.read_status()
        if status == "killed":
            return {IS_GONE: 1.0}
        if status != "running":
            return {}
        try:
            last = float(json.loads(self.run.heartbeat_file.read_text())["time"])
        except (OSError, ValueError, KeyError, TypeError):  # none yet: from when it was said to run
            last = self.run.status_file.stat().st_mtime
        return {SILENCE: now - last}
