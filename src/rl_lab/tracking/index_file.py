"""The file behind the catalogue: a SQLite database that any process may throw away and make anew.

It lies on the local disk, whatever disk the runs are on: SQLite's write-ahead log needs shared memory. Who uses it
holds a shared lock, who makes it anew an exclusive one, so that nobody's file is exchanged while it is written to.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

_VERSION = 2
_WAIT_S = 60.0  # for another writer; a write takes milliseconds
_EXCHANGE_S = 5.0  # for all others to let go of a file that must be made anew
COLUMNS = {  # in the order of their size: what is large is not read past
    "run": "TEXT PRIMARY KEY",
    "stamp": "INTEGER",
    "id": "TEXT",
    "name": "TEXT",
    "seed": "INTEGER",
    "status": "TEXT",
    "created": "REAL",
    "active": "REAL",
    "algorithm": "TEXT",
    "environment": "TEXT",
    "host": "TEXT",
    "git_hash": "TEXT",
    "config_hash": "TEXT",
    "tags": "TEXT",
    "pinned": "INTEGER",
    "env_steps": "INTEGER",
    "updates": "INTEGER",
    "score": "REAL",
    "offset": "INTEGER",
    "last": "TEXT",
    "highest": "TEXT",
    "config": "TEXT",
}
_LONG = ("offset", "last", "highest", "config")  # most of a row; questions about the rest read an index without them
_SCHEMA = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE runs ({", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())});
CREATE INDEX short ON runs ({", ".join(f'"{name}"' for name in COLUMNS if name not in _LONG)});
PRAGMA user_version = {_VERSION};
"""


def index_path(root: Path) -> Path:
    """Return where the index of a root lies: in LAB_INDEX, or else in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rl-lab", "index")
    folder = Path(os.environ.get("LAB_INDEX") or cache)
    return folder / f"{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.sqlite"


class IndexFile:
    """An open database. Where none can be made (no room, no permission) it is in memory and serves this once."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, -1
        self.is_in_memory = False
        try:
            self._open()
        except (OSError, sqlite3.Error):
            self.use_memory()

    def replace(self) -> None:
        """Throw the file away and make an empty one, or use none if others do not let go of it."""
        self.connection.close()
        if self.is_in_memory or not self._take_alone():
            self.use_memory()
            return
        try:
            self._make()
            self._connect()
        except (OSError, sqlite3.Error):
            self.use_memory()

    def use_memory(self) -> None:
        """Leave the file alone from now on: an empty database in memory takes its place."""
        self._let_go()
        self.is_in_memory = True
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Let go of it."""
        self.connection.close()
        self._let_go()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        if not _is_ours(self.path):
            if not self._take_alone():
                raise OSError("the index is in use")
            if not _is_ours(self.path):  # another process may have made it meanwhile
                self._make()
        self._connect()

    def _connect(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self.connection = sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = NORMAL")

    def _make(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        connection = sqlite3.connect(self.path)
        try:
            connection.executescript(_SCHEMA)
        finally:
            connection.close()

    def _take_alone(self) -> bool:
        """Take the lock alone and return whether that worked; nobody waits for ever on a stranger."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        end = time.monotonic() + _EXCHANGE_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.01)

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _is_ours(path: Path) -> bool:
    """Return whether there is a database of this version; one that cannot be read is none."""
    if not path.is_file():
        return False
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_WAIT_S)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            found = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
        finally:
            connection.close()
    except sqlite3.Error:
        return False
    return bool(version == _VERSION and found == list(COLUMNS))
