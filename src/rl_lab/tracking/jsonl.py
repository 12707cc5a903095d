"""Files of one JSON object per line that only grow, and can be cut back to where a checkpoint saw them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_lab.core.durable import DISK_FULL, reason
from rl_lab.core.errors import CheckpointError, RunDirectoryError

_TAIL_BYTES = 1 << 16


class JsonLines:
    """Appends rows. While the disk is full they wait in memory, so that a run outlives it without a gap in its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._waiting = b""

    def open(self, size: int | None = None) -> None:
        """Open for appending at `size` bytes, cutting off the rest; None keeps every whole line."""
        self.close_quietly()
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            present = os.fstat(self._descriptor).st_size
            if size is None:
                size = _end_of_last_line(self._descriptor, present)
            if size <= present:
                os.ftruncate(self._descriptor, size)
                return
        except OSError as error:
            raise RunDirectoryError(f"cannot open {self.path}: {reason(error)}") from error
        self.close_quietly()
        raise CheckpointError(f"{self.path} has {present} bytes, but the checkpoint was made at {size}: it was cut")

    @property
    def is_open(self) -> bool:
        """Return whether rows can be appended."""
        return self._descriptor is not None

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row; it is visible to readers at once, and durable after `sync`."""
        assert self._descriptor is not None, f"{self.path.name} is written before it was opened"
        self._waiting += json.dumps(row).encode() + b"\n"
        self._flush()

    def sync(self) -> int:
        """Force all rows to the disk and return the size of the file."""
        if self._descriptor is None:
            return 0
        self._flush()
        if self._waiting:
            raise CheckpointError(f"cannot write {self.path}: disk full ({len(self._waiting)} bytes wait in memory)")
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path}: {reason(error)}") from error
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Write what waits and close."""
        try:
            self.sync()
        finally:
            self.close_quietly()

    def close_quietly(self) -> None:
        """Close without another write."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._waiting = None, b""

    def _flush(self) -> None:
        assert self._descriptor is not None
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise RunDirectoryError(f"cannot write {self.path}: {reason(error)}") from error


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


def _end_of_last_line(descriptor: int, size: int) -> int:
    tail = os.pread(descriptor, min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    return max(0, size - _TAIL_BYTES) + tail.rfind(b"\n") + 1
