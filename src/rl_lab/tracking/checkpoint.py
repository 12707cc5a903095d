"""The checkpoints of a run: the newest whole one is always there, whatever happens while the next one is written."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rl_lab.core.durable import fsync_directory, reason
from rl_lab.core.errors import CheckpointError, ConfigError
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.tracking.atomic import remove_directory, remove_leftovers, replace_file, temporary_sibling
from rl_lab.tracking.checkpoint_files import (
    Content,
    DamagedError,
    read_manifest,
    read_state,
    stored_segments,
    write_files,
)
from rl_lab.tracking.segments import Stored
from rl_lab.tracking.state_codec import Segments, encode

LATEST, BEST = "latest", "best"  # pointers for people and scripts; the lab itself looks at the directories


class Loaded(NamedTuple):
    """A checkpoint that was read and verified."""

    state: Any
    manifest: dict[str, Any]
    path: Path
    damaged: list[str]  # newer ones that had to be skipped, each with the reason


@dataclass(frozen=True)
class Entry:
    """A checkpoint whose manifest is in order; its other files are verified when it is loaded."""

    serial: int
    path: Path
    counters: dict[str, int]
    phase: str
    score: float | None
    schema_version: int

    @property
    def rank(self) -> tuple[float, int]:
        """Return what `best` is the highest of: the score, the newer one among equals."""
        return (-math.inf if self.score is None else self.score, self.serial)


class CheckpointStore:
    """Saves, verifies, finds and rotates the checkpoints in one directory.

    The ranks of a run save together: what is not the first one's lies in a directory of its own within the checkpoint,
    which gets its name when all of it is there.
    """

    def __init__(self, directory: Path | str, keep_last: int = 2, keep_best: int = 1, ranks: Ranks = ALONE) -> None:
        self.directory, self._ranks = Path(directory), ranks
        if keep_last < 1 or keep_best < 0:
            raise ConfigError(f"training.keep_last must be >= 1 and keep_best >= 0, not {keep_last} and {keep_best}")
        self.keep_last, self.keep_best = keep_last, keep_best

    def save(self, state: Any, *, counters: Mapping[str, int], phase: str, score: float | None = None) -> Path:
        """Write a new checkpoint, then drop old ones. `score` is the evaluation return of exactly these parameters.

        Raises TypeError with the path of a leaf that cannot be stored, CheckpointError when the disk refuses; then all
        earlier checkpoints are as before.
        """
        segments: Segments = {}
        content = Content(*encode(state, segments), segments)
        is_first, temporary, serial = self._ranks.is_first, self.directory, 0
        with ExitStack() as cleaning:  # also an interrupt must not leave half a checkpoint behind
            with self._disk_errors():
                if is_first:
                    temporary, serial = self._begin()
                    cleaning.callback(shutil.rmtree, temporary, ignore_errors=True)
            name, serial = self._ranks.first((temporary.name, serial))
            header = {"serial": serial, "counters": dict(counters), "phase": phase, "score": _finite(score)}
            with self._disk_errors():
                own = self.directory / name / self._ranks.folder
                own.mkdir(exist_ok=is_first)
                write_files(own, content, header, self._stored_segments() if segments else {})
            with self._disk_errors():
                if is_first:
                    os.rename(temporary, self._path(serial))
                    cleaning.pop_all()
                    self._settle(serial)
        return self._path(serial)

    def _begin(self) -> tuple[Path, int]:
        """Make the directory that will be the next checkpoint, under another name; return it and its number."""
        self.directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.directory)
        serial = max(self._serials(), default=0) + 1
        temporary = temporary_sibling(self._path(serial))
        temporary.mkdir()
        return temporary, serial

    def _settle(self, serial: int) -> None:
        """Force the new name to the disk, point at it and drop old ones."""
        fsync_directory(self.directory)
        sound, newer = self._scan()
        try:
            self._point(self._path(serial), sound)
        finally:  # a full disk must not keep the rotation from freeing it
            self._rotate(serial, sound, newer)

    def load_newest(self) -> Loaded:
        """Return the newest checkpoint that is whole, for all ranks, and name the damaged ones that are newer."""
        damaged: list[str] = []
        for serial in self._ranks.first(self._serials()[::-1]):
            path, loaded, wrong = self._path(serial), None, None
            try:
                loaded = _read(path, self._ranks, damaged)
            except DamagedError as error:
                wrong = f"{path.name}: {error}"
            wrong = next(filter(None, self._ranks.gather(wrong)), None)
            if wrong is None and loaded is not None:
                return loaded
            damaged.append(str(wrong))
        why = f"every one is damaged ({'; '.join(damaged)})" if damaged else "there is none"
        raise CheckpointError(f"no whole checkpoint in {self.directory}: {why}")

    @staticmethod
    def load(path: Path | str, ranks: Ranks = ALONE) -> Loaded:
        """Return this checkpoint, or raise CheckpointError that says what is wrong with it."""
        directory = Path(path)
        if not directory.is_dir():
            raise CheckpointError(f"no checkpoint at {directory}: expected a directory with MANIFEST.json")
        try:
            return _read(directory, ranks, [])
        except DamagedError as error:
            raise CheckpointError(f"checkpoint {directory} is damaged: {error}") from error

    def entries(self) -> list[Entry]:
        """Return the checkpoints with a sound manifest, oldest first."""
        return self._scan()[0]

    def best(self) -> Entry | None:
        """Return the one with the highest score, the newest among equals; None when none has a score."""
        return _best(self.entries())

    def _serials(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        names = (entry.name for entry in os.scandir(self.directory) if entry.is_dir(follow_symlinks=False))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and name == _name(int(name)))

    def _path(self, serial: int) -> Path:
        return self.directory / _name(serial)

    def _scan(self) -> tuple[list[Entry], set[int]]:
        """Return the sound ones, and the serials of those that only a newer lab can read."""
        sound, newer = [], set()
        for serial in self._serials():
            path = self._path(serial)
            try:
                manifest = read_manifest(path)
                fields = (manifest[key] for key in ("counters", "phase", "score", "schema_version"))
                sound.append(Entry(serial, path, *fields))
            except CheckpointError:
                newer.add(serial)
            except DamagedError:
                continue
        return sound, newer

    def _stored_segments(self) -> dict[str, Stored]:
        """Return where the segments of all checkpoints lie; of those in several, the newest one's."""
        found: dict[str, Stored] = {}
        for serial in self._serials():
            try:
                own = self._path(serial) / self._ranks.folder
                found |= stored_segments(own, read_manifest(own))
            except (DamagedError, CheckpointError):
                continue
        return found

    def _point(self, newest: Path, sound: list[Entry]) -> None:
        """Let the pointer files name the newest and the best; nothing depends on them, so they are not forced out."""
        replace_file(self.directory / LATEST, newest.name + "\n", durable=False)
        best = _best(sound)
        if best is not None:
            replace_file(self.directory / BEST, best.path.name + "\n", durable=False)

    def _rotate(self, newest: int, sound: list[Entry], newer: set[int]) -> None:
        """Keep the last and the best ones; damaged ones go when they are older than all of the last ones."""
        last = {entry.serial for entry in sound[-self.keep_last :]} | {newest}
        ranked = sorted((entry for entry in sound if entry.score is not None), key=lambda e: e.rank, reverse=True)
        kept = last | newer | {entry.serial for entry in ranked[: self.keep_best]}
        for serial in self._serials():
            if serial not in kept and serial < min(last):
                remove_directory(self._path(serial))

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raise CheckpointError in all ranks where the disk refuses one of them; all wait for all."""
        wrong: OSError | None = None
        try:
            yield
        except OSError as error:
            wrong = error
        said = next(filter(None, self._ranks.gather(wrong and reason(wrong))), None)
        if said is not None:
            message = f"cannot save a checkpoint in {self.directory}: {said}; the earlier ones are untouched"
            raise CheckpointError(message) from wrong


def _read(path: Path, ranks: Ranks, damaged: list[str]) -> Loaded:
    """Return what a checkpoint holds of this rank."""
    own = path / ranks.folder
    manifest = read_manifest(own)
    return Loaded(read_state(own, manifest), manifest, path, damaged)


def _best(entries: Iterable[Entry]) -> Entry | None:
    return max((entry for entry in entries if entry.score is not None), key=lambda entry: entry.rank, default=None)


def _finite(score: float | None) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def _name(serial: int) -> str:
    return f"{serial:06d}"
