"""An append-only journal in segment files: what the actor's spool and the learner's log are made of.

A segment is named after its first record and begins with a header that its owner wrote; it gets its name when the
header is durable. A record is one frame, and `kill -9` can tear only the last ones: opening cuts them off. A write
that fails (disk full) is taken back, so that the next one follows a whole record. Segments are deleted whole, from the
front.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rl_lab.core.durable import reason
from rl_lab.distributed.transport.frames import HEADER_BYTES, Frame, frame, payload_length, split
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.segments import (
    MAX_RECORD,
    SUFFIX,
    Segment,
    create,
    find_segments,
    lock,
    scan,
    unlock,
    write_all,
)

_RESERVE = ".reserve"
_RESERVE_BYTES = 1 << 14  # kept so that a full disk has room for the segment that lets an older one go
_BLOCK = 1 << 20  # bytes read at a time
logger = logging.getLogger(__name__)


class Journal:
    """The writer of a directory of segments; there is one at a time. Readers of the same process may run beside it."""

    def __init__(self, directory: Path, segment_bytes: int = 1 << 26) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        self._guard = threading.Lock()
        self._file, self._size, self._lock, self._broken = -1, 0, -1, ""
        self.header: bytes | None = None  # of the newest segment; None in a new journal, which waits for `roll`
        self.next = self.synced = 0  # the number of the next record; all before `synced` survive a power cut
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = lock(directory)
            self._segments = find_segments(directory)
            self._older_bytes = sum(segment.path.stat().st_size for segment in self._segments[:-1])
            self._make_reserve()
            if self._segments:
                self._open_newest()
        except OSError as error:
            self.close()
            raise TransportError(f"{directory} cannot be written: {reason(error)}") from error
        except TransportError:
            self.close()
            raise

    @property
    def first(self) -> int:
        """Return the number of the oldest record that is still there."""
        return self._segments[0].first if self._segments else self.next

    @property
    def num_bytes(self) -> int:
        """Return what all segments take up."""
        return self._older_bytes + self._size

    @property
    def newest_first(self) -> int:
        """Return the number of the first record in the newest segment."""
        return self._segments[-1].first if self._segments else self.next

    @property
    def newest_bytes(self) -> int:
        """Return the size of the newest segment."""
        return self._size

    @property
    def is_segment_full(self) -> bool:
        """Return whether it is time for `roll`."""
        return self._size >= self._segment_bytes

    def records_of_newest(self) -> list[Frame]:
        """Return the records of the newest segment, from which its owner learns where it stands."""
        if not self._segments:
            return []
        return JournalReader(self, self.newest_first).read(self.next, sys.maxsize)

    def append(self, payloads: Sequence[bytes | memoryview]) -> int:
        """Write records, all or none, and return the number of the first; raises OSError when that fails."""
        with self._guard:
            self._check()
            data = b"".join(frame(self.next + offset, payload) for offset, payload in enumerate(payloads))
            try:
                write_all(self._file, data)
            except OSError:
                self._take_back()
                raise
            first, self.next, self._size = self.next, self.next + len(payloads), self._size + len(data)
            return first

    def sync(self) -> None:
        """Make all records durable; appending goes on meanwhile."""
        with self._guard:
            self._check()
            end, descriptor = self.next, os.dup(self._file)  # a roll may close the other one
        try:
            os.fsync(descriptor)
        except OSError as error:  # what the system dropped now, a second fsync would not write
            self._broken = reason(error)
            raise
        finally:
            os.close(descriptor)
        with self._guard:
            self.synced = max(self.synced, end)

    def roll(self, header: bytes) -> None:
        """Begin a new segment with this header; one without records is replaced."""
        with self._guard:
            if self._broken:
                self._check()
            if self._file >= 0:
                os.fsync(self._file)
                self.synced = self.next
            path = self._directory / f"{self.next:020d}{SUFFIX}"
            data = frame(self.next, header)
            descriptor = create(path, data)
            if self._file >= 0:
                os.close(self._file)
            if self._segments and self._segments[-1].first == self.next:
                self._segments.pop()
            else:
                self._older_bytes += self._size
            self._segments.append(Segment(self.next, path))
            self._file, self._size, self.header = descriptor, len(data), header

    def release(self, before: int) -> None:
        """Delete the segments that hold only records before this number."""
        with self._guard:
            while len(self._segments) > 1 and self._segments[1].first <= before:
                path = self._segments.pop(0).path
                self._older_bytes -= path.stat().st_size
                path.unlink()

    def replace(self, header: bytes, before: int) -> None:
        """Begin a new segment and release the older ones, even when the disk is full."""
        with suppress(FileNotFoundError):
            (self._directory / _RESERVE).unlink()
        try:
            self.roll(header)
            self.release(before)
        finally:
            self._make_reserve()

    def segment_of(self, index: int) -> Segment:
        """Return the segment that holds a record, or will hold it."""
        with self._guard:
            if not self.first <= index <= self.next or not self._segments:
                raise TransportError(f"{self._directory} holds records {self.first} to {self.next}, not {index}")
            return self._segments[bisect_right(self._segments, index, key=lambda segment: segment.first) - 1]

    def close(self) -> None:
        """Let go of the files."""
        with self._guard:
            if self._file >= 0:
                os.close(self._file)
            if self._lock >= 0:
                unlock(self._directory, self._lock)
            self._file = self._lock = -1
            self._broken = "it is closed"

    def _check(self) -> None:
        if self._broken or self._file < 0:
            raise TransportError(f"{self._directory} cannot be written: {self._broken or 'it has no segment'}")

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._file, self._size)
        except OSError as error:
            self._broken = reason(error)

    def _open_newest(self) -> None:
        first, path = self._segments[-1]
        header, self.next, size, total = scan(path, first)
        self.header, self._size = header, size
        if total > size:
            logger.warning("%s: cut off %d bytes of a record that was being written", path, total - size)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._file, size)
        os.fsync(self._file)
        self.synced = self.next

    def _make_reserve(self) -> None:
        path = self._directory / _RESERVE
        try:
            if not path.exists():
                path.write_bytes(bytes(_RESERVE_BYTES))
        except OSError:  # there is no room for it yet
            path.unlink(missing_ok=True)


class JournalReader:
    """Reads records in order, from any one on, also of a journal that is being written."""

    def __init__(self, journal: Journal, start: int) -> None:
        self._journal, self.next = journal, start
        self._offset, self._path = 0, Path()

    def read(self, stop: int, max_bytes: int) -> list[Frame]:
        """Return the records from `next` to before `stop`, as many as fit in `max_bytes` but at least one."""
        found: list[Frame] = []
        size = 0
        while self.next < stop and size < max_bytes:
            segment = self._journal.segment_of(self.next)
            if segment.path != self._path:
                self._enter(segment)
            for index, payload in self._read_block(min(max_bytes - size, _BLOCK)):
                if index > self.next:
                    raise TransportError(f"{self._path} lacks record {self.next}")
                if index >= stop or size >= max_bytes:
                    break
                if index == self.next:
                    found.append(Frame(index, payload))
                    self.next, size = index + 1, size + HEADER_BYTES + len(payload)
                self._offset += HEADER_BYTES + len(payload)
        return found

    def _enter(self, segment: Segment) -> None:
        self._path, self._offset = segment.path, 0
        ((_, header),) = self._read_block(0)  # of the owner; the records come after it
        self._offset = HEADER_BYTES + len(header)

    def _read_block(self, num_bytes: int) -> list[Frame]:
        """Return whole frames from the offset on; the first one whatever its size."""
        data = self._read_bytes(max(num_bytes, HEADER_BYTES))
        frames, _, fault = split(data, MAX_RECORD)
        if not frames and not fault:  # larger than the block
            data = self._read_bytes(HEADER_BYTES + payload_length(data))
            frames, _, fault = split(data, MAX_RECORD)
        if not frames:
            raise TransportError(f"{self._path} is damaged at byte {self._offset}: {fault or 'a record is cut off'}")
        return frames

    def _read_bytes(self, num_bytes: int) -> bytes:
        """Return bytes from the offset on; a file that stayed open would take up the disk after it is deleted."""
        with open(self._path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), num_bytes, self._offset)
