"""Several datasets as one: what differs between them is listed, and those of another robot are refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rl_lab.buffers.datasets.files import UNFINISHED, make_directory
from rl_lab.buffers.datasets.format import DatasetError, Episode, EpisodeReader, EpisodeWriter
from rl_lab.core.durable import fsync_directory
from rl_lab.core.errors import UsageError


def differences(one: EpisodeReader, other: EpisodeReader) -> list[str]:
    """Return what keeps two datasets from being one, a few words each; nothing: they fit."""
    found = []
    if one.robot is not None and other.robot is not None and one.robot != other.robot:
        found.append(f"robot is {other.robot!r} instead of {one.robot!r}")
    rates = (one.steps_per_second, other.steps_per_second)
    if None not in rates and rates[0] != rates[1]:
        found.append(f"steps per second are {rates[1]:g} instead of {rates[0]:g}")
    if not one.lengths or not other.lengths:
        return found
    ours, theirs = one.read(0).fields(), other.read(0).fields()
    for name in dict.fromkeys((*ours, *theirs)):
        if name not in theirs:
            found.append(f"{name} is missing ({ours[name]})")
        elif name not in ours:
            found.append(f"{name} is new ({theirs[name]})")
        elif ours[name] != theirs[name]:
            found.append(f"{name} is {theirs[name]} instead of {ours[name]}")
    return found


def reject_strangers(readers: Sequence[EpisodeReader]) -> None:
    """Raise when a dataset does not fit the first one; all differences are listed."""
    for other in readers[1:]:
        if found := differences(readers[0], other):
            raise DatasetError(f"{other.path} does not fit {readers[0].path}: {'; '.join(found)}")


def write_new(target: Path, make: Callable[[Path], EpisodeWriter], episodes: Iterable[Episode]) -> int:
    """Write a dataset that has its name once it is whole, and return how many episodes it has."""
    if target.exists():
        raise UsageError(f"{target} exists and is not overwritten")
    unfinished = target.with_name(f"{UNFINISHED}{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_directory(unfinished.absolute().parent)
    count = 0
    try:
        with make(unfinished) as writer:
            for episode in episodes:
                writer.save(episode)
                count += 1
        if not count:
            raise UsageError(f"there are no episodes for {target}")
        os.replace(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    fsync_directory(target.absolute().parent)
    return count
