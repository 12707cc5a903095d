"""A directory of this user on this machine that nobody else can enter, for sockets and secrets of running commands."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from rl_lab.core.errors import ConfigError

_LONG = 60  # letters of a directory that leave too few for the name of a socket


def private_directory() -> Path:
    """Return where nobody else can put a file in the place of ours: the user's, else one of our own."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(runtime) < _LONG and _is_private(Path(runtime)):
        return Path(runtime)
    path = Path(tempfile.gettempdir()) / f"rl-lab-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not _is_private(path):
        remedy = f"chmod 700 {path}, or set XDG_RUNTIME_DIR to a directory of yours that is"
        raise ConfigError(f"{path} is not this user's alone (mode 0700): {remedy}")
    return path


def _is_private(path: Path) -> bool:
    """Return whether it is a directory, no link, that only this user can enter."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
