"""How much memory of the host a process may still take: what the system has, or its control group allows if less."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Files(NamedTuple):
    """How a version of control groups calls its files; those of version 1 lie in a folder of their own."""

    folder: str
    limit: str
    usage: str
    cached: tuple[str, ...]  # lines of memory.stat: file pages that the system gives up when memory is wanted


VERSION_1 = Files(
    "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
VERSION_2 = Files("", "memory.max", "memory.current", ("inactive_file", "active_file"))


def free_host_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that are free, or None where the system does not say; `root` is that of its file system."""
    found = [_available(root / "proc/meminfo"), *_allowed(root)]
    return min((number for number in found if number is not None), default=None)


def _available(meminfo: Path) -> int | None:
    """Return MemAvailable, or the free pages of a system without it."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(meminfo), re.M)
    if match:
        return int(match[1]) * 1024
    names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if any(name not in os.sysconf_names for name in names):
        return None
    pages, size = (os.sysconf(name) for name in names)
    return pages * size


def _allowed(root: Path) -> Iterator[int]:
    """Yield what the control group of this process, and every group above it, leaves."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        files = VERSION_1 if controllers else VERSION_2
        mount = root / "sys/fs/cgroup" / files.folder
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            if (left := _left(folder, files)) is not None:
                yield left


def _left(folder: Path, files: Files) -> int | None:
    limit, usage = _read(folder / files.limit).strip(), _read(folder / files.usage).strip()
    if not limit.isdigit() or not usage.isdigit():  # no such group, or no limit ("max")
        return None
    lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
    cached = sum(int(words[1]) for words in lines if len(words) == 2 and words[0] in files.cached)
    return max(0, int(limit) - max(0, int(usage) - cached))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
