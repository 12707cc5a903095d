"""A checkpoint without its buffers: the weights stay, so that a policy can still be played, and replay goes."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_lab.core.durable import fsync_directory
from rl_lab.core.errors import CheckpointError
from rl_lab.tracking.atomic import temporary_sibling, write_durable
from rl_lab.tracking.checkpoint_files import MANIFEST, STATE, TENSORS, DamagedError, read_manifest, self_hash

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of renameat2(2)
_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems such as NFS, and old kernels


def check_droppable(checkpoints: Sequence[Path]) -> None:
    """Raise CheckpointError when one is damaged, or where directories cannot be exchanged; they stay as they are."""
    for checkpoint in checkpoints:
        for folder in _folders(checkpoint):
            try:
                read_manifest(folder)
                json.loads((folder / STATE).read_bytes())
            except (DamagedError, json.JSONDecodeError) as error:
                raise CheckpointError(f"checkpoint {checkpoint} is damaged: {error}") from error
    if checkpoints:
        _probe_exchange(checkpoints[0])


def drop_buffers(checkpoint: Path) -> None:
    """Replace a checkpoint by one without segments; killed in between, one of the two is there, whole."""
    slim = temporary_sibling(checkpoint)
    try:
        for folder in _folders(checkpoint):
            target = slim / folder.relative_to(checkpoint)
            target.mkdir()
            _copy_without_segments(folder, target)
        fsync_directory(slim)
        _exchange(slim, checkpoint)
        fsync_directory(checkpoint.parent)
    except (DamagedError, json.JSONDecodeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: {error}") from error
    finally:
        shutil.rmtree(slim, ignore_errors=True)  # by now the full one, or else half of the slim one


def _folders(checkpoint: Path) -> list[Path]:
    """Return a checkpoint and its parts of other ranks."""
    return [checkpoint, *(path for path in checkpoint.iterdir() if path.is_dir())]


def _probe_exchange(checkpoint: Path) -> None:
    """Exchange two empty directories beside a checkpoint."""
    first, second = temporary_sibling(checkpoint), temporary_sibling(checkpoint)
    try:
        first.mkdir()
        second.mkdir()
        _exchange(first, second)
    finally:
        for path in (first, second):
            shutil.rmtree(path, ignore_errors=True)


def _copy_without_segments(source: Path, target: Path) -> None:
    manifest: dict[str, Any] = read_manifest(source)
    kind, state = json.loads((source / STATE).read_bytes())
    os.link(source / TENSORS, target / TENSORS)
    text = json.dumps([kind, {**state, "buffers": ["dict", {}]}], separators=(",", ":"), allow_nan=False).encode()
    write_durable(target / STATE, text)
    files = {TENSORS: manifest["files"][TENSORS]}
    files[STATE] = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    slim = manifest | {"files": files}
    slim["sha256"] = self_hash(slim)
    write_durable(target / MANIFEST, json.dumps(slim, indent=1).encode())
    fsync_directory(target)


def _exchange(first: Path, second: Path) -> None:
    """Let two directories change names in one step, which only the kernel can do."""
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    refusal = f"directories cannot be exchanged in {second.parent}: clean whole checkpoints instead of only buffers"
    try:
        failed = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    except AttributeError as error:  # not Linux
        raise CheckpointError(refusal) from error
    if failed:
        number = ctypes.get_errno()
        if number in _UNABLE:
            raise CheckpointError(refusal)
        raise OSError(number, os.strerror(number), str(second))
