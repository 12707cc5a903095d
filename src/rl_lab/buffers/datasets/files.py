"""Durable files of a dataset: what a killed writer leaves is the old content or the new one, never a mixture."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from rl_lab.buffers.datasets.format import DatasetError
from rl_lab.core.durable import fsync_directory, reason

UNFINISHED = ".tmp-"  # how the name of every file begins that is not whole yet
_LOCK = ".writer.lock"


def commit(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file, force it to the disk and give it its name in one step."""
    make_directory(path.parent)
    temporary = path.with_name(f"{UNFINISHED}{secrets.token_hex(4)}-{path.name}")  # ends like the file it becomes
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DatasetError(f"{path} cannot be written: {reason(error)}") from error
    fsync_directory(path.parent)


def commit_bytes(path: Path, data: bytes) -> None:
    """Give `path` a new content in one durable step."""
    commit(path, lambda temporary: temporary.write_bytes(data))


def commit_json(path: Path, content: Any) -> None:
    """Give `path` a new JSON content in one durable step."""
    commit_bytes(path, json.dumps(content, indent=4, ensure_ascii=False).encode())


def append_line(path: Path, line: bytes) -> None:
    """Add a line durably; when the disk is full, the file is as it was."""
    is_new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    size = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, line) != len(line):
            raise DatasetError(f"{path} cannot be written: disk full")
        os.fsync(descriptor)
        if is_new:
            fsync_directory(path.parent)
    except (OSError, DatasetError) as error:
        os.ftruncate(descriptor, size)
        if isinstance(error, OSError):
            raise DatasetError(f"{path} cannot be written: {reason(error)}") from error
        raise
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not JSON") from error
    if not isinstance(content, dict):
        raise DatasetError(f"{path} is not a JSON object")
    return content


def make_directory(path: Path) -> None:
    """Create a directory, and those above it, so that a power cut does not take them back."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    fsync_directory(path.parent)


def remove_unfinished(root: Path) -> None:
    """Delete the temporary files that a killed writer left. Only for who holds the lock."""
    for path in root.rglob(f"{UNFINISHED}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def lock_for_writing(root: Path) -> BinaryIO:
    """Create the directory and become its only writer until the returned file is closed or the process ends."""
    try:
        make_directory(root)
        file = open(root / _LOCK, "ab")  # noqa: SIM115  (held open as long as the writer lives)
    except OSError as error:
        raise DatasetError(f"{root} cannot be written: {reason(error)}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise DatasetError(f"{root} is being written by another process") from error
    return file


def holds_files(root: Path) -> bool:
    """Return whether there are files other than a writer's lock; a killed writer may leave empty directories."""
    return any(path.name != _LOCK and not path.is_dir() for path in root.rglob("*"))


def one_line(error: BaseException) -> str:
    """Return another library's message on one line."""
    return " ".join(str(error).split())[:200]
