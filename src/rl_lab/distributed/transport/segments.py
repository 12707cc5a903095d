"""The files of a journal: found, read whole, created and locked."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import NamedTuple

from rl_lab.core.durable import fsync_directory
from rl_lab.distributed.transport.frames import HEADER_BYTES, split
from rl_lab.distributed.transport.interface import TransportError

MAX_RECORD = 1 << 26  # bytes
SUFFIX = ".segment"
_NEW, _LOCK = ".new", ".lock"
_held: set[Path] = set()
_guard = threading.Lock()


class Segment(NamedTuple):
    """A file, and the number of its first record."""

    first: int
    path: Path


def scan(path: Path, first: int) -> tuple[bytes, int, int, int]:
    """Return a segment's header, the number after its last whole record, where that ends, and the file's size."""
    data = path.read_bytes()
    frames, end, _ = split(data, MAX_RECORD)
    header = bytes(frames[0].payload) if frames and frames[0].number == first else None
    numbers = [record.number for record in frames[1:]]
    if header is None or numbers != list(range(first, first + len(numbers))):
        raise TransportError(f"{path} is damaged: its {'header' if header is None else 'numbering'} is wrong")
    if _has_record(memoryview(data)[end:], first + len(numbers) + 1):
        raise TransportError(
            f"{path} is damaged at byte {end} and whole records follow: no kill does that, the disk did"
        )
    return header, first + len(numbers), end, len(data)


def _has_record(data: memoryview, number: int) -> bool:
    """Return whether a whole record with this number lies anywhere in these bytes."""
    content, pattern = bytes(data), number.to_bytes(8, "little")
    at = content.find(pattern)
    while at >= 0:
        start = at + len(pattern) - HEADER_BYTES
        if start >= 0 and any(record.number == number for record in split(data[start:], MAX_RECORD).frames[:1]):
            return True
        at = content.find(pattern, at + 1)
    return False


def find_segments(directory: Path) -> list[Segment]:
    """Return the segments of a directory in order, and delete what a killed process left unfinished."""
    for path in directory.glob(f"*{_NEW}"):
        path.unlink()
    return sorted(Segment(int(path.stem), path) for path in directory.glob(f"*{SUFFIX}"))


def create(path: Path, data: bytes) -> int:
    """Return the descriptor of a new file that has its name only once its content is durable."""
    temporary = path.with_suffix(_NEW)
    descriptor = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
        os.replace(temporary, path)
        fsync_directory(path.parent)
    except OSError:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
        raise
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """Write bytes to their end, or raise OSError."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(descriptor, view) :]


def lock(directory: Path) -> int:
    """Take the directory for this journal, until `unlock`. The lock ends with the process, whatever that has forked."""
    with _guard:  # locks of this kind do not keep a process from itself
        if directory.resolve() in _held:
            raise TransportError(f"{directory} is in use by this process")
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise TransportError(f"{directory} is in use by another process") from error
    with _guard:
        _held.add(directory.resolve())
    return descriptor


def unlock(directory: Path, descriptor: int) -> None:
    """Let the directory go."""
    with _guard:
        _held.discard(directory.resolve())
    os.close(descriptor)
