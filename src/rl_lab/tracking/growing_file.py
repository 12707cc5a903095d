"""Files that only grow, and can be cut back to where a checkpoint saw them."""

from __future__ import annotations

import os
from pathlib import Path

from rl_lab.core.durable import DISK_FULL, reason
from rl_lab.core.errors import CheckpointError, RunDirectoryError


class GrowingFile:
    """Appends bytes. While the disk is full they wait in memory: a run outlives it without a gap in its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._waiting = b""

    def open(self, size: int) -> None:
        """Open for appending at `size` bytes, cutting off the rest."""
        self.close_quietly()
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            present = os.fstat(self._descriptor).st_size
            if size <= present:
                os.ftruncate(self._descriptor, size)
                return
        except OSError as error:
            raise RunDirectoryError(f"cannot open {self.path}: {reason(error)}") from error
        self.close_quietly()
        raise CheckpointError(f"{self.path} has {present} bytes, but the checkpoint was made at {size}: it was cut")

    @property
    def is_open(self) -> bool:
        """Return whether anything can be appended."""
        return self._descriptor is not None

    def write(self, data: bytes) -> None:
        """Append; it is visible to readers at once, and durable after `sync`."""
        assert self._descriptor is not None, f"{self.path.name} is written before it was opened"
        self._waiting += data
        self._flush()

    def sync(self) -> int:
        """Force all of it to the disk and return the size of the file."""
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
