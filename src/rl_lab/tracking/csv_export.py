"""metrics.csv: the rows of metrics.jsonl under the union of their columns."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.jsonl import read_rows
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.sinks import POSITION, Row, Sink


def export_csv(metrics_file: Path, target: Path) -> int:
    """Write the CSV and return the number of rows. A metric that a row does not have is an empty cell."""
    rows = list(read_rows(metrics_file))
    metrics = sorted({key for row in rows for key in row} - set(POSITION))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*POSITION, *metrics], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(target, text.getvalue())
    return len(rows)


class CsvSink(Sink):
    """Exports when the run is over; the rows are in metrics.jsonl until then."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def row(self, row: Row) -> None:
        """Nothing to do: metrics.jsonl has it."""

    def close(self) -> None:
        """Write metrics.csv."""
        export_csv(self._run.metrics_file, self._run.path / "metrics.csv")
