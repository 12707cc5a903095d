"""The learner's write-ahead log: one file order of the steps of all actors, durable before they are acknowledged.

The log is the only way into the learner's buffer. A cursor is a place in it: a learner that goes back to a checkpoint
reads the same steps again, in the same order. What each stream (an actor's run) has sent is in the header of every
segment and in the records after it: older segments are not needed to know what to refuse.
"""

from __future__ import annotations

import json
import secrets
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_lab.core.durable import reason
from rl_lab.distributed.transport.frames import Frame
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.journal import Journal, JournalReader
from rl_lab.distributed.transport.schema import Schema

MAX_STREAMS, MAX_RUNS = 1 << 12, 1 << 7  # of all actors, and of each
_RECORD = struct.Struct("<IQ")  # number of the stream, number of the step in it
_READ_BYTES = 1 << 22


class OrderError(TransportError):
    """Steps that are not the next ones of their stream."""


class Stream(NamedTuple):
    """The steps of one run of one actor."""

    actor: str
    run: str


class LoggedStep(NamedTuple):
    """A step as it lies in the log."""

    stream: Stream
    seq: int
    payload: memoryview


class StepLog:
    """The log in a directory, with the cursor of every stream and the place up to which the learner has read.

    Args:
        directory: Where the segments lie.
        schema: Of the steps; a log with steps of another one is refused.
        max_unread: Bytes that may wait for the learner; then `has_room` is false and actors wait.
        segment_bytes: Size of a file.
    """

    def __init__(self, directory: Path, schema: Schema, *, max_unread: int, segment_bytes: int = 1 << 26) -> None:
        self._directory, self._schema = directory, schema.sha256
        self._max_unread = max(1, max_unread // (schema.step_bytes + _RECORD.size))  # steps
        self._journal = Journal(directory, segment_bytes)
        self._changed = threading.Condition()
        self._syncing = threading.Lock()
        self._streams: list[Stream] = []
        self._cursors: dict[Stream, int] = {}
        self.id = secrets.token_hex(8)
        try:
            self._recover()
        except TransportError:
            self._journal.close()
            raise
        self._reader = JournalReader(self._journal, self._journal.first)

    def cursor(self, stream: Stream, first: int) -> int:
        """Return the number of the step that is next of this stream; a new one begins with `first`."""
        with self._changed:
            if stream not in self._cursors:
                if sum(known.actor == stream.actor for known in self._streams) >= MAX_RUNS:
                    raise TransportError(f"{stream.actor} has begun {MAX_RUNS} runs here, no more are taken")
                if len(self._streams) >= MAX_STREAMS:
                    raise TransportError(f"the log {self._directory} has {MAX_STREAMS} streams, no more are taken")
                self._streams.append(stream)
                self._cursors[stream] = first
                try:
                    self._roll()
                except OSError as error:
                    self._streams.pop()
                    del self._cursors[stream]
                    raise TransportError(f"the log {self._directory} cannot be written: {reason(error)}") from error
            return self._cursors[stream]

    def append(self, stream: Stream, frames: Sequence[Frame]) -> int:
        """Log those steps that are new, durably, and return the number of the next one; a gap is refused."""
        with self._changed:
            cursor = self._cursors[stream]
            fresh = [step for step in frames if step.number >= cursor]
            if [step.number for step in fresh] != list(range(cursor, cursor + len(fresh))):
                raise OrderError(f"steps of {stream.actor} are not in order: {cursor} is next")
            number = self._streams.index(stream)
            records = [_RECORD.pack(number, seq) + payload for seq, payload in fresh]
            try:
                if self._journal.is_segment_full:
                    self._roll()
                if records:
                    self._journal.append(records)
            except OSError as error:
                raise TransportError(f"the log {self._directory} cannot be written: {reason(error)}") from error
            self._cursors[stream] = cursor + len(fresh)
        self._sync()
        with self._changed:
            self._changed.notify_all()
        return cursor + len(fresh)

    @property
    def num_unread(self) -> int:
        """Return how many steps wait for the learner."""
        return self._journal.next - self._reader.next

    def has_room(self, timeout_s: float) -> bool:
        """Return whether within this time the learner had read enough for more steps to be taken."""
        with self._changed:
            return self._changed.wait_for(lambda: self.num_unread < self._max_unread, timeout_s)

    def read(self, max_steps: int, timeout_s: float) -> list[LoggedStep]:
        """Return the next durable steps, at most `max_steps`; none in time: none."""
        with self._changed:
            self._changed.wait_for(lambda: self._journal.synced > self._reader.next, timeout_s)
            stop = min(self._journal.synced, self._reader.next + max_steps)
            records = self._reader.read(stop, _READ_BYTES)
            self._changed.notify_all()
        return [self._logged(record.payload) for record in records]

    def get_state(self) -> dict[str, Any]:
        """Return the place up to which the learner has read."""
        return {"log": self.id, "next": self._reader.next}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Read on from the place of `state`."""
        self._check_mine(state)
        if not self._journal.first <= state["next"] <= self._journal.next:
            held = f"steps {self._journal.first} to {self._journal.next}"
            raise TransportError(f"the log {self._directory} holds {held}, the checkpoint goes on at {state['next']}")
        with self._changed:
            self._reader = JournalReader(self._journal, state["next"])
            self._changed.notify_all()

    def release(self, state: Mapping[str, Any]) -> None:
        """Delete the segments before the place of `state`."""
        self._check_mine(state)
        self._journal.release(min(state["next"], self._reader.next))

    def cursors(self) -> dict[Stream, int]:
        """Return the number of the next step of every stream."""
        with self._changed:
            return dict(self._cursors)

    def close(self) -> None:
        """Let go of the files."""
        with self._changed:
            self._journal.close()

    def _sync(self) -> None:
        """Make durable what was appended; who waited for another's fsync needs none of its own."""
        wanted = self._journal.next
        with self._syncing:
            if self._journal.synced < wanted:
                try:
                    self._journal.sync()
                except OSError as error:
                    raise TransportError(f"the log {self._directory} cannot be written: {reason(error)}") from error

    def _logged(self, record: memoryview) -> LoggedStep:
        number, seq = _RECORD.unpack_from(record)
        return LoggedStep(self._streams[number], seq, record[_RECORD.size :])

    def _check_mine(self, state: Mapping[str, Any]) -> None:
        if state["log"] != self.id:
            raise TransportError(f"the checkpoint belongs to the log {state['log']}, {self._directory} is {self.id}")

    def _roll(self) -> None:
        streams = [[*stream, self._cursors[stream]] for stream in self._streams]
        header = {"log": self.id, "schema": self._schema, "streams": streams}
        self._journal.roll(json.dumps(header).encode())

    def _recover(self) -> None:
        if self._journal.header is None:
            try:
                self._roll()
            except OSError as error:
                raise TransportError(f"the log {self._directory} cannot be written: {reason(error)}") from error
            return
        header = json.loads(self._journal.header)
        if header["schema"] != self._schema:
            raise TransportError(f"the log {self._directory} holds steps of another schema; name another directory")
        self.id = header["log"]
        for actor, run, cursor in header["streams"]:
            self._streams.append(Stream(actor, run))
            self._cursors[self._streams[-1]] = cursor
        for record in self._journal.records_of_newest():
            number, seq = _RECORD.unpack_from(record.payload)
            self._cursors[self._streams[number]] = seq + 1
