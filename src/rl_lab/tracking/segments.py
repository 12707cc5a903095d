"""Segments on disk: bytes that never change under their key, written once and hard-linked into every later checkpoint.

Linked checkpoints share one copy, so a file that is damaged is damaged in all of them. That a save does not carry
damage on unnoticed, it looks at size and time of change of what it links: where they are not those of the manifest, the
bytes are compared with those in memory, and written anew when they differ.
A loaded segment is mapped when it is large: a buffer copies it to where it wants it without a second copy in memory.
The map is private (writing to it changes no file) and stays valid when the checkpoint is rotated away.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.core.buffer import Segment
from rl_lab.tracking.state_codec import SEGMENT_KEY, Segments
from rl_lab.tracking.tensor_file import BLOCK, raw_bytes, write_blocks

PREFIX = "segment-"
_MAPPED_BYTES = 1 << 20  # smaller ones are read: a process can hold some 65,000 maps only


class Stored(NamedTuple):
    """A segment in a checkpoint."""

    path: Path
    sha256: str
    num_bytes: int
    mtime_ns: int | None  # when its bytes last changed, which all links share; None in a manifest that does not say


def segment_name(key: str) -> str:
    """Return the file name of a segment."""
    return PREFIX + key


def key_of(name: str) -> str | None:
    """Return the key in the file name of a segment, or None when it is no such name."""
    key = name.removeprefix(PREFIX)
    return key if name.startswith(PREFIX) and SEGMENT_KEY.fullmatch(key) else None


def place_segment(directory: Path, segment: Segment, stored: Stored | None) -> Stored:
    """Put a segment into a directory: linked from an earlier checkpoint, or else written."""
    target = directory / segment_name(segment.key)
    size = segment.tensor.numel() * segment.tensor.element_size()
    if stored is not None and stored.num_bytes == size and _link(stored.path, target, size):
        if _mtime_ns(target) == stored.mtime_ns:
            return stored._replace(path=target)
        target.unlink()
    data = raw_bytes(segment.tensor.detach().cpu().resolve_conj().resolve_neg().contiguous())
    if stored is not None and _link(stored.path, target, size):
        if (sha256 := _digest_of_equal(target, data)) is not None:
            return Stored(target, sha256, size, _mtime_ns(target))
        target.unlink()
    sha256, _ = write_blocks(target, [data])
    return Stored(target, sha256, size, _mtime_ns(target))


def _link(source: Path, target: Path, size: int) -> bool:
    """Give a file of this size a second name and return whether that worked; what cannot be linked is written."""
    try:
        os.link(source, target)
    except OSError:  # gone, on another disk, linked too often, not permitted, or not a thing of this file system
        return False
    info = os.lstat(target)
    if stat.S_ISREG(info.st_mode) and info.st_size == size:
        return True
    target.unlink()
    return False


def _digest_of_equal(path: Path, data: memoryview) -> str | None:
    """Return the sha256 of a file that holds exactly `data`, forced to the disk; None when it holds something else."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            for start in range(0, len(data), BLOCK):
                piece = bytes(data[start : start + BLOCK])
                if file.read(len(piece)) != piece:
                    return None
                digest.update(piece)
            os.fsync(file.fileno())
    except OSError:  # cannot be read: the bytes in memory can still be written
        return None
    return digest.hexdigest()


def _mtime_ns(path: Path) -> int:
    return os.lstat(path).st_mtime_ns


def read_segments(directory: Path, names: Iterable[str]) -> Segments:
    """Return the raw bytes of those among the files that are segments, by key."""
    paths = {key: directory / name for name in names if (key := key_of(name)) is not None}
    return {key: Segment(key, _read_bytes(path)) for key, path in paths.items()}


def _read_bytes(path: Path) -> Tensor:
    size = path.stat().st_size
    if size >= _MAPPED_BYTES:
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    raw = torch.empty(size, dtype=torch.uint8)
    with open(path, "rb") as file:
        if file.readinto(raw.numpy().data) != size:
            raise ValueError(f"{path.name} became shorter while it was read")
    return raw
