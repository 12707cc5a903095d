"""What the machine of a run is short of, as numbers of a row."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rl_lab.core.free_memory import free_host_memory
from rl_lab.tracking.alert_rules import FREE_DISK, FREE_MEMORY, USED_MEMORY

_MB = 1e6


def machine_numbers(directory: Path, process: str = "self") -> dict[str, float]:
    """Return free memory, free disk under `directory` and what a process takes, as far as the system says it."""
    found = {FREE_MEMORY: free_host_memory(), FREE_DISK: _free_disk(directory), USED_MEMORY: _resident(process)}
    return {name: number / _MB for name, number in found.items() if number is not None}


def _free_disk(directory: Path) -> int | None:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None


def _resident(process: str) -> int | None:
    try:
        pages = int(Path("/proc", process, "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
