"""The checkpoints of a run: the newest whole one is always there, whatever happens while the next one is written."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rl_lab.core.durable import fsync_directory, reason
from rl_lab.core.errors import CheckpointError, ConfigError
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
    """Saves, verifies, finds and rotates the checkpoints in one directory."""

    def __init__(self, directory: Path | str, keep_last: int = 2, keep_best: int = 1) -> None:
        self.directory = Path(directory)
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
        with self._disk_errors():
            self.directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.directory)
            serial = max(self._serials(), default=0) + 1
            header = {"serial": serial, "counters": dict(counters), "phase": phase, "score": _finite(score)}
            path = self._path(serial)
            stored = self._stored_segments() if segments else {}
            self._publish(path, lambda directory: write_files(directory, content, header, stored))
            sound, newer = self._scan()
            try:
                self._point(path, sound)
            finally:  # a full disk must not keep the rotation from freeing it
                self._rotate(serial, sound, newer)
        return path

    def load_newest(self) -> Loaded:
        """Return the newest whole checkpoint and name the damaged ones that are newer."""
        damaged: list[str] = []
        for serial in reversed(self._serials()):
            path = self._path(serial)
            try:
                manifest = read_manifest(path)
                return Loaded(read_state(path, manifest), manifest, path, damaged)
            except DamagedError as error:
                damaged.append(f"{path.name}: {error}")
        why = f"every one is damaged ({'; '.join(damaged)})" if damaged else "there is none"
        raise CheckpointError(f"no whole checkpoint in {self.directory}: {why}")

    @staticmethod
    def load(path: Path | str) -> Loaded:
        """Return this checkpoint, or raise CheckpointError that says what is wrong with it."""
        directory = Path(path)
        if not directory.is_dir():
            raise CheckpointError(f"no checkpoint at {directory}: expected a directory with MANIFEST.json")
        try:
            manifest = read_manifest(directory)
            return Loaded(read_state(directory, manifest), manifest, directory, [])
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
                found |= stored_segments(self._path(serial), read_manifest(self._path(serial)))
            except (DamagedError, CheckpointError):
                continue
        return found

    def _publish(self, path: Path, fill: Callable[[Path], None]) -> None:
        temporary = temporary_sibling(path)
        temporary.mkdir()
        with ExitStack() as cleaning:  # also an interrupt must not leave half a checkpoint behind
            cleaning.callback(shutil.rmtree, temporary, ignore_errors=True)
            fill(temporary)
            os.rename(temporary, path)
            cleaning.pop_all()
        fsync_directory(self.directory)

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
        try:
            yield
        except OSError as error:
            message = f"cannot save a checkpoint in {self.directory}: {reason(error)}; the earlier ones are untouched"
            raise CheckpointError(message) from error


def _best(entries: Iterable[Entry]) -> Entry | None:
    return max((entry for entry in entries if entry.score is not None), key=lambda entry: entry.rank, default=None)


def _finite(score: float | None) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def _name(serial: int) -> str:
    return f"{serial:06d}"
