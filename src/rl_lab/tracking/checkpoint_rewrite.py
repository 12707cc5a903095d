"""Checkpoints of older labs written anew in today's layout, where a step of the migrations says all of them there."""

from __future__ import annotations

import os
from pathlib import Path

from rl_lab.core.durable import fsync_directory
from rl_lab.core.errors import CheckpointError
from rl_lab.tracking.atomic import remove_directory, temporary_sibling
from rl_lab.tracking.checkpoint_files import (
    MANIFEST,
    SCHEMA_VERSION,
    Content,
    DamagedError,
    read_manifest,
    read_state,
    stored_segments,
    write_files,
)
from rl_lab.tracking.checkpoint_migrations import untranslated
from rl_lab.tracking.state_codec import Segments, encode

_PENDING = "pending-"  # before the name of what lies aside until the new one is in its place
_HEADER = ("serial", "counters", "phase", "score")


def is_older(version: int) -> bool:
    """Return whether a checkpoint of a version can be written anew: it is of an older layout, and all of it fits."""
    return version < SCHEMA_VERSION and not untranslated(version)


def rewrite(checkpoint: Path, aside: Path) -> None:
    """Write a checkpoint in today's layout; as it was it goes `aside`, or away where an older one lies there already.

    Killed in between, `bring_back` makes it what it was.
    """
    fresh = temporary_sibling(checkpoint)
    fresh.mkdir()
    try:
        for file in sorted(checkpoint.glob(f"**/{MANIFEST}")):  # of the first process, and of each other one
            (fresh / file.parent.relative_to(checkpoint)).mkdir(parents=True, exist_ok=True)
            _rewrite_files(file.parent, fresh / file.parent.relative_to(checkpoint))
    except (DamagedError, OSError) as error:
        remove_directory(fresh)
        raise CheckpointError(f"checkpoint {checkpoint} stays as it is: {error}") from error
    aside.mkdir(parents=True, exist_ok=True)
    pending = aside / f"{_PENDING}{checkpoint.name}"
    os.rename(checkpoint, pending)
    os.rename(fresh, checkpoint)
    fsync_directory(checkpoint.parent)
    if (aside / checkpoint.name).exists():
        remove_directory(pending)
    else:
        os.rename(pending, aside / checkpoint.name)
    fsync_directory(aside)


def put_aside(aside: Path) -> list[str]:
    """Return the names of what went aside when writing anew was killed; one that is done may be pruned since."""
    return sorted(path.name.removeprefix(_PENDING) for path in aside.glob(f"{_PENDING}*"))


def bring_back(checkpoints: Path, aside: Path) -> None:
    """Put that back."""
    for name in put_aside(aside):
        if (checkpoints / name).exists():
            remove_directory(checkpoints / name)
        os.rename(aside / f"{_PENDING}{name}", checkpoints / name)


def _rewrite_files(source: Path, target: Path) -> None:
    manifest, segments = read_manifest(source), Segments()
    content = Content(*encode(read_state(source, manifest), segments), segments)
    write_files(target, content, {key: manifest[key] for key in _HEADER}, stored_segments(source, manifest))
