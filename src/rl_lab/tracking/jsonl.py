"""Files of one JSON object per line that only grow, and can be cut back to where a checkpoint saw them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_lab.core.durable import reason
from rl_lab.core.errors import RunDirectoryError
from rl_lab.tracking.growing_file import GrowingFile

_TAIL_BYTES = 1 << 16


class JsonLines(GrowingFile):
    """Appends rows."""

    def open(self, size: int | None = None) -> None:
        """Open for appending at `size` bytes, cutting off the rest; None keeps every whole line."""
        super().open(_end_of_last_line(self.path) if size is None else size)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row; it is visible to readers at once, and durable after `sync`."""
        self.write(json.dumps(row).encode() + b"\n")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows; half a line, which a living or killed process left, is passed over."""
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            row = _parse(line)
            if row is not None:
                yield row


def last_row(path: Path) -> dict[str, Any] | None:
    """Return the last whole row without reading the file from its start."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    return next((row for row in map(_parse, reversed(lines)) if row is not None), None)


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _end_of_last_line(path: Path) -> int:
    if not path.is_file():
        return 0
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
            file.seek(start)
            return start + file.read().rfind(b"\n") + 1
    except OSError as error:
        raise RunDirectoryError(f"cannot open {path}: {reason(error)}") from error
