"""How much of a disk directories take."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path


def freed_bytes(paths: Iterable[Path]) -> int:
    """Return what the disk gets back when these files and directories go: of links, once the last of them goes."""
    links: dict[tuple[int, int], tuple[int, int, int]] = {}
    for path in paths:
        for info in _files(path):
            key = (info.st_dev, info.st_ino)
            seen = links[key][0] + 1 if key in links else 1
            links[key] = (seen, info.st_nlink, info.st_size)
    return sum(size for seen, count, size in links.values() if seen >= count)


def _files(path: Path) -> Iterable[os.stat_result]:
    try:
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode):
            return [info]
        return [found for entry in os.scandir(path) for found in _files(Path(entry.path))]
    except OSError:  # it went while we looked
        return []
