"""One process per run directory. The kernel's flock decides, so that the lock of a dead owner is free."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rl_lab.core.durable import reason
from rl_lab.core.errors import RunDirectoryError

_RETRY_S = 0.05
_MOMENT_S = 0.25  # `is_locked` of another process holds it for so long at most
_held: set[int] = set()


def _close_in_child() -> None:
    """Forked workers (vector environments) share the lock's descriptor and would hold it after the owner's death."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def exclusive_lock(path: Path, wait_s: float = _MOMENT_S) -> Iterator[None]:
    """Hold the lock file `path`; raise RunDirectoryError that names the owner when another holds it for longer."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunDirectoryError(f"cannot write in run directory {path.parent}: {reason(error)}") from error
    _held.add(descriptor)
    try:
        _acquire(descriptor, path, wait_s)
        _write_owner(descriptor)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        if descriptor in _held:  # not in a forked child that leaves this block
            _held.discard(descriptor)
            _release(descriptor)


def _acquire(descriptor: int, path: Path, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                break
            time.sleep(_RETRY_S)
        except OSError as error:
            raise RunDirectoryError(f"cannot lock run directory {path.parent}: {reason(error)}") from error
    owner = read_owner(path)
    who = f"pid {owner['pid']} on host {owner['host']}" if owner else "another process"
    raise RunDirectoryError(f"run directory {path.parent} is in use by {who}; stop it, or use another --run-dir")


def _release(descriptor: int) -> None:
    with suppress(OSError):  # unlocking also frees a child that was forked a moment ago; closing does the rest
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _write_owner(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def read_owner(path: Path) -> dict[str, object] | None:
    """Return pid, host and start of the process that wrote the lock file last, if that can be read."""
    try:
        owner = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) and {"pid", "host"} <= set(owner) else None


def is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
