"""The actor's spool: every step is in a file before anything else happens to it, until the learner has it safe."""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path

from rl_lab.core.durable import reason
from rl_lab.distributed.transport.frames import frame
from rl_lab.distributed.transport.interface import NoRoom, TransportError
from rl_lab.distributed.transport.journal import Journal, JournalReader
from rl_lab.distributed.transport.schema import Schema

_RETRY_S = 0.2  # between two tries on a full disk
_TIDY_BYTES = 1 << 20  # of acknowledged steps in the newest segment before it makes way for a new one


class Spool:
    """One run of an actor: its steps, numbered from 0, in a directory.

    Args:
        directory: Where the segments lie. A directory is one run, whose id is in it.
        schema: Of the steps; a spool with steps of another one is refused.
        max_bytes: When it has grown to this, `append` waits for the learner.
        sync_every_step: Survive a power cut in `append`, and not only before a step is sent.
        segment_bytes: Size of a file; acknowledged ones are deleted.
    """

    def __init__(
        self, directory: Path, schema: Schema, *, max_bytes: int, sync_every_step: bool, segment_bytes: int = 1 << 26
    ) -> None:
        self._directory, self._schema, self._max_bytes = directory, schema, max_bytes
        self._sync_every_step = sync_every_step
        self._journal = Journal(directory, segment_bytes)
        try:
            self.run = self._open_run()
        except TransportError:
            self._journal.close()
            raise
        self._acknowledged = self._journal.first
        self._changed = threading.Condition()
        self._is_starving = False  # a step waits for room

    @property
    def first(self) -> int:
        """Return the number of the oldest step that is still here."""
        return self._journal.first

    @property
    def next(self) -> int:
        """Return the number of the next step."""
        return self._journal.next

    @property
    def acknowledged(self) -> int:
        """Return the number before which the learner has all steps."""
        return self._acknowledged

    def append(self, payload: bytes, timeout_s: float | None = None, *, is_last: bool = False) -> int:
        """Record a step and return its number; waits for room at most `timeout_s`, or else raises NoRoom.

        `is_last` asks for room on the disk alone.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (problem := self._try(payload, is_last)) is not None:
            left = _RETRY_S if deadline is None else min(_RETRY_S, deadline - time.monotonic())
            self._is_starving = True  # also after this call: who has the step in hand comes back with it
            if left <= 0:
                raise NoRoom(f"step {self.next} was not recorded, all before it are: {problem}")
            with self._changed:
                self._changed.wait(left)
        self._is_starving = False
        seq = self._journal.next - 1
        if self._sync_every_step:
            self._journal.sync()
        with self._changed:
            self._changed.notify_all()
        return seq

    def reader(self, seq: int) -> JournalReader:
        """Return a place to `read` from, at this step."""
        return JournalReader(self._journal, seq)

    def read(self, reader: JournalReader, max_bytes: int, timeout_s: float) -> bytes:
        """Return the next steps as frames, durable here, at most `max_bytes` of them or one; none in time: none."""
        with self._changed:
            self._changed.wait_for(lambda: self._journal.next > reader.next, timeout_s)
        if self._journal.next > self._journal.synced:  # what the learner knows, this spool does not forget
            self._journal.sync()
        return b"".join(frame(*record) for record in reader.read(self._journal.synced, max_bytes))

    def acknowledge(self, seq: int) -> None:
        """Know that all steps before this one are safe, and delete them file by file."""
        if not self._acknowledged <= seq <= self.next:
            raise TransportError(f"the learner acknowledges step {seq} of {self.next} in {self._directory}")
        self._acknowledged = seq
        self._journal.release(seq)
        self._tidy(0 if self._is_starving else _TIDY_BYTES)
        with self._changed:
            self._changed.notify_all()

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Return whether within this time the learner had all steps."""
        with self._changed:
            return self._changed.wait_for(lambda: self._acknowledged == self.next, timeout_s)

    def wake(self) -> None:
        """Let waiting calls look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of the files; the steps stay."""
        self._journal.close()

    def _try(self, payload: bytes, is_last: bool) -> str | None:
        """Return why there is no room, or None when the step is recorded."""
        is_full = self._journal.num_bytes + len(payload) > self._max_bytes and self._acknowledged < self.next
        if is_full and not is_last:
            used = self._journal.num_bytes >> 20
            return f"the spool {self._directory} is full ({used} of {self._max_bytes >> 20} MiB wait for the learner)"
        try:
            if self._journal.is_segment_full:
                self._journal.roll(self._header())
            self._journal.append([payload])
        except OSError as error:
            self._tidy(0)
            return f"{self._directory}: {reason(error)}"
        return None

    def _tidy(self, min_bytes: int) -> None:
        """Make room where all steps are acknowledged, but lie in the segment that is being written."""
        seq = self._acknowledged
        if seq == self.next > self._journal.newest_first and self._journal.newest_bytes > min_bytes:
            with suppress(OSError):  # the next one tries again
                self._journal.replace(self._header(), seq)

    def _header(self) -> bytes:
        return json.dumps({"run": self.run, "schema": self._schema.sha256}).encode()

    def _open_run(self) -> str:
        if self._journal.header is None:
            self.run = secrets.token_hex(8)
            try:
                self._journal.roll(self._header())
            except OSError as error:
                raise TransportError(f"{self._directory} cannot be written: {reason(error)}") from error
            return self.run
        header = json.loads(self._journal.header)
        if header["schema"] != self._schema.sha256:
            raise TransportError(f"the spool {self._directory} holds steps of another schema; name another directory")
        return str(header["run"])
