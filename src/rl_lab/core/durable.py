"""What every room that writes files needs: names that survive a power cut, and the system's refusals in plain words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason(error: OSError) -> str:
    """Return what the system said, in words a user knows."""
    text = error.strerror or str(error)
    return f"disk full ({text})" if error.errno in DISK_FULL else text
