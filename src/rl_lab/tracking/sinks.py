"""Where rows go besides the run's own files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
POSITION = ("step", "updates", "episodes", "cycles", "phase")  # what every row has besides its metrics


class Sink(ABC):
    """Shows or forwards what the tracker writes. A sink never changes a run: one that raises OSError is dropped."""

    def open(self, *, total_steps: int, start_step: int, resumed: bool) -> None:  # noqa: B027  (optional)
        """Begin at env step `start_step` of `total_steps`."""

    @abstractmethod
    def row(self, row: Row) -> None:
        """Take a row of metrics.jsonl."""

    def perf(self, row: Row) -> None:  # noqa: B027  (optional)
        """Take a row of perf.jsonl."""

    def event(self, event: Row) -> None:  # noqa: B027  (optional)
        """Take an event; one with a `message` or `reason` is meant to be read by a person."""

    def picture(self, key: str, step: int, png: bytes) -> None:  # noqa: B027  (optional)
        """Take a picture that was saved at env step `step`."""

    def progress(self, position: Row) -> None:  # noqa: B027  (optional)
        """Take the counters between rows, a few times a second."""

    def close(self) -> None:  # noqa: B027  (optional)
        """The run is over."""


def numbers(row: Row) -> dict[str, float]:
    """Return the metrics of a row without its position."""
    return {key: value for key, value in row.items() if "/" in key}
