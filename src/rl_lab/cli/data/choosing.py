"""From what is typed to datasets and episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_lab.buffers.datasets.format import Array, DatasetError, Episode, EpisodeReader, Field, named
from rl_lab.buffers.datasets.open import detect_format, open_dataset
from rl_lab.buffers.datasets.packaged import PREFIX
from rl_lab.buffers.datasets.summary import find_datasets
from rl_lab.core.errors import RunDirectoryError, UsageError, unknown_name
from rl_lab.tracking.catalogue import find_run


def open_named(which: str, root: str, *, is_checked: bool = True) -> EpisodeReader:
    """Open a dataset by its directory, by `packaged/NAME`, or as the only one that a run recorded."""
    if which.startswith(PREFIX):
        return open_dataset(which)
    return open_dataset(find_dataset(which, root), is_checked=is_checked)


def find_dataset(which: str, root: str) -> Path:
    """Return the directory of a dataset, or of the only one below a directory or a run."""
    place = Path(which)
    if not place.exists():
        try:
            place = find_run(root, which).path
        except RunDirectoryError as error:
            raise UsageError(f"{which} is neither a directory nor a run: {error}") from error
    found = find_datasets(place)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{place} holds {len(found)} datasets, name one: {', '.join(map(str, found))}")
    detect_format(place)  # says what is missing
    raise DatasetError(f"{place} holds no dataset")


def choose_episodes(text: str | None, reader: EpisodeReader) -> list[int]:
    """Return the numbers that `0,3,5-8` names; None: all."""
    if text is None:
        return list(range(len(reader.lengths)))
    numbers: list[int] = []
    try:
        for part in text.split(","):
            begin, _, end = part.partition("-")
            numbers += range(int(begin), int(end or begin) + 1)
    except ValueError:
        raise UsageError(f"--episodes {text}: expected numbers such as 0,3,5-8") from None
    if not numbers:
        raise UsageError(f"--episodes {text} names none")
    return reader.select(numbers)


def reject_existing(path: Path) -> None:
    """Raise when something is there already."""
    if path.exists():
        raise UsageError(f"{path} exists and is not overwritten")


def read_without(
    reader: EpisodeReader, numbers: Sequence[int], left_out: Sequence[str], skipped: Callable[[str], None] | None = None
) -> Iterator[Episode]:
    """Yield the episodes without some of their arrays; with `skipped` damaged ones are told to it and passed over."""
    for number in numbers:
        try:
            episode = reader.read(number)
        except DatasetError as error:
            if skipped is None:
                raise
            skipped(f"episode {number}: {error}")
            continue
        yield leave_out(episode, left_out) if left_out else episode


def leave_out(episode: Episode, names: Sequence[str]) -> Episode:
    """Return the episode without observations and infos of these names."""
    known = {name for name in episode.arrays() if name.startswith(("observations/", "infos/"))}
    wanted = {f"{kind}/{name}" for name in names for kind in ("observations", "infos")} | set(names)
    for name in names:
        if not {name, f"observations/{name}", f"infos/{name}"} & known:
            raise UsageError(unknown_name("--leave-out", name, [entry.partition("/")[2] for entry in known]))
    if not isinstance(episode.observations, dict) or not isinstance(episode.final_observation, dict):
        infos = {key: array for key, array in episode.infos.items() if f"infos/{key}" not in wanted}
        return replace(episode, infos=infos)
    kept: dict[str, Any] = {k: a for k, a in episode.observations.items() if f"observations/{k}" not in wanted}
    if not kept:
        raise UsageError("--leave-out leaves no observation")
    return replace(
        episode,
        observations=kept,
        final_observation={key: episode.final_observation[key] for key in kept},
        infos={key: array for key, array in episode.infos.items() if f"infos/{key}" not in wanted},
    )


def cameras_of(episode: Episode) -> dict[str, Array]:
    """Return the pictures [T, C, H, W] of an episode by name."""
    found = {}
    for name, array in named(episode.observations).items():
        if Field(str(array.dtype), array.shape[1:]).is_image:
            found[name.partition("/")[2] or "observations"] = array
    return found
