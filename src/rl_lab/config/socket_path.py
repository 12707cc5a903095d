"""Where the socket of a run lies: in a directory that nobody else can enter, under a name that is short enough."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rl_lab.core.private_directory import private_directory


def socket_of(run: Path) -> str:
    """Return the path of a run's socket: short, because the system allows about 100 letters."""
    digest = hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:16]
    return str(private_directory() / f"rl-lab-{digest}.sock")
