"""The index of the runs under a root: what their files said when they were last looked at, ready for questions.

The directories are the truth. Before every question the index looks at the time of change of each directory, which
every small file of a run changes when it is written, and reads anew what changed; living runs it always looks at.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rl_lab.tracking.groups import is_run, run_directories
from rl_lab.tracking.index_file import COLUMNS, IndexFile, index_path
from rl_lab.tracking.run_record import SCORE, Progress, RunRecord, read_record

_BATCH = 500  # runs per transaction: a rebuild that is killed goes on from there
_SETTLED_NS = 2_000_000_000  # a directory that changed a moment ago may change again within one tick of its clock
_UNSETTLED = -1
_LIVING = "running"
_UPSERT = f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(COLUMNS))})"
Row = tuple[Any, ...]
T = TypeVar("T")


class Index:
    """Answers SQL about the runs under a root, also those of its sweeps and launches; use it as a context."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self._file = IndexFile(index_path(self.root.resolve()))

    def __enter__(self) -> Index:
        self.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a SELECT."""
        return self._healed(lambda: self._file.connection.execute(sql, parameters).fetchall())

    def refresh(self) -> None:
        """Bring the index up to date with the directories."""
        self._healed(self._refresh)

    def rebuild(self) -> int:
        """Throw the index away, read every run anew and return how many there are."""
        self._file.replace()
        self.refresh()
        ((count,),) = self.rows("SELECT count(*) FROM runs")
        return int(count)

    def _healed(self, work: Callable[[], T]) -> T:
        """Do the work; when the file is damaged or cannot be written it is made anew, and if that fails left alone."""
        for heal in (self._file.replace, self._file.use_memory):
            try:
                return work()
            except sqlite3.DatabaseError:
                if self._file.is_in_memory:
                    raise
                heal()
            with suppress(sqlite3.DatabaseError):  # the work will meet it too
                self._refresh()
        return work()

    def _refresh(self) -> None:
        connection = self._file.connection
        known = {
            run: (stamp, status) for run, stamp, status in connection.execute("SELECT run, stamp, status FROM runs")
        }
        stamps = run_directories(self.root, {run: stamp for run, (stamp, _) in known.items()})
        changed = [run for run, stamp in stamps.items() if _is_due(stamp, known.get(run))]
        gone = [run for run in known if run not in stamps]
        for start in range(0, len(changed), _BATCH):
            self._read(changed[start : start + _BATCH], stamps)
        if gone:
            self._write([("DELETE FROM runs WHERE run = ?", [(run,) for run in gone])])

    def _read(self, runs: Sequence[str], stamps: dict[str, int]) -> None:
        """Read runs anew; a directory that holds none, or none any more, is dropped."""
        now, found, gone = time.time_ns(), [], []
        for run in runs:
            path = self.root / run
            if not is_run(path):
                gone.append((run,))
                continue
            record = read_record(path, self._progress(run))
            stamp = stamps[run] if now - stamps[run] > _SETTLED_NS else _UNSETTLED
            found.append(_row(run, stamp, record))
        self._write([(_UPSERT, found), ("DELETE FROM runs WHERE run = ?", gone)])

    def _progress(self, run: str) -> Progress | None:
        """Return how far a run without final metrics was read before."""
        sql = "SELECT offset, env_steps, updates, last, highest FROM runs WHERE run = ? AND offset > 0"
        row = self._file.connection.execute(sql, (run,)).fetchone()
        return None if row is None else Progress(row[0], row[1], row[2], json.loads(row[3]), json.loads(row[4]))

    def _write(self, changes: Iterable[tuple[str, list[Row]]]) -> None:
        changes = [(sql, rows) for sql, rows in changes if rows]
        if not changes:
            return
        connection = self._file.connection
        connection.execute("BEGIN IMMEDIATE")  # waits for its turn here: a reader that turns writer would be refused
        try:
            for sql, rows in changes:
                connection.executemany(sql, rows)
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _is_due(stamp: int, known: tuple[int, str] | None) -> bool:
    return known is None or known[0] != stamp or known[1] == _LIVING


def _row(run: str, stamp: int, record: RunRecord) -> Row:
    progress = record.progress
    return (
        run,
        stamp,
        record.id,
        record.name,
        record.seed,
        record.status,
        record.created,
        record.active,
        record.algorithm,
        record.environment,
        record.host,
        record.git_hash,
        record.config_hash,
        json.dumps(record.labels.tags),
        int(record.labels.pinned),
        progress.env_steps,
        progress.updates,
        progress.highest.get(SCORE),
        progress.offset,
        json.dumps(progress.last),
        json.dumps(progress.highest),
        json.dumps({key: _plain(value) for key, value in record.config.items()}, default=str),
    )


def _plain(value: Any) -> Any:
    """Return a value that JSON has a word for."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
