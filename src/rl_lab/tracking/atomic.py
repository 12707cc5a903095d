"""Durable files: what is on disk after a power cut or `kill -9` is the old content or the new one, never a mixture."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from rl_lab.core.durable import fsync_directory

LEFTOVER_PREFIX = ".tmp-"  # of every file and directory that is not finished yet


def temporary_sibling(path: Path) -> Path:
    """Return an unused name beside `path` that marks something unfinished."""
    return path.with_name(f"{LEFTOVER_PREFIX}{path.name}-{secrets.token_hex(4)}")


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and force it to the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Give `path` a new content in one step; with `durable` it also survives a power cut."""
    content = data.encode() if isinstance(data, str) else data
    temporary = temporary_sibling(path)
    try:
        if durable:
            write_durable(temporary, content)
        else:
            temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Delete a directory so that a kill in between leaves a leftover and not half of something with a good name."""
    doomed = temporary_sibling(path)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(directory: Path) -> list[str]:
    """Delete what a killed process left unfinished here, and return the names. Only for the owner of the directory."""
    names = [entry.name for entry in os.scandir(directory) if entry.name.startswith(LEFTOVER_PREFIX)]
    for name in names:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return names
