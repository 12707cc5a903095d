"""The lab's own dataset: one immutable safetensors file per episode, and an index to which its line is added last.

    dataset.json              format, version and what every array looks like
    index.jsonl               one line per episode: file, steps, bytes, sha256
    notes.jsonl               when its steps were taken and who watched, as far as that is known
    episode-000000.safetensors

Observations are stored with the final one as their last row. A writer that is killed leaves a file without a line, or
half a line; readers pass over both, and the next writer removes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from rl_lab.buffers.datasets.files import (
    append_line,
    commit_bytes,
    commit_json,
    holds_files,
    lock_for_writing,
    one_line,
    read_json,
    remove_unfinished,
)
from rl_lab.buffers.datasets.format import (
    Array,
    DatasetError,
    Episode,
    EpisodeReader,
    EpisodeWriter,
    Field,
    is_plain,
    named,
    reject_change,
    unnamed,
)
from rl_lab.buffers.datasets.notes import keep_notes, read_notes, write_notes
from rl_lab.core.durable import reason

HEADER, INDEX, NOTES = "dataset.json", "index.jsonl", "notes.jsonl"
FORMAT, VERSION = "rl-lab-dataset", 1
_EPISODE = re.compile(r"episode-\d{6,}\.safetensors")  # nothing that leads out of the directory


class LabReader(EpisodeReader):
    """Reads a directory that `LabWriter` filled; without `is_checked` a damaged episode is told when it is read."""

    format = "lab"

    def __init__(self, path: Path, *, is_checked: bool = True) -> None:
        self.path = path
        header = _read_header(path / HEADER)
        self.fields, self.robot, self.steps_per_second = header.fields, header.robot, header.steps_per_second
        self._entries, _ = _read_index(path / INDEX)
        self.lengths = [entry["steps"] for entry in self._entries]
        for entry in self._entries if is_checked else ():
            _check_size(path / entry["file"], entry)
        self._notes = read_notes(path / NOTES)

    def read(self, number: int) -> Episode:
        """Return one episode; every byte is checked against the index."""
        entry = self._entries[number]
        path = self.path / entry["file"]
        metadata, arrays = _read_arrays(path, entry)
        arrays = {name: arrays[name] for name in (*self.fields, *arrays) if name in arrays}
        has_final = metadata.get("has_final_observation") == "true"
        observations, steps = unnamed(arrays), entry["steps"]
        for name, array in named(observations).items():
            if len(array) != steps + has_final:
                raise DatasetError(f"{path}: {name!r} has {len(array)} rows instead of {steps + has_final}")
        episode = Episode(
            observations=_each(observations, lambda array: array[:steps]),
            actions=unnamed(arrays, "actions"),
            rewards=arrays["rewards"],
            terminated=metadata.get("terminated") == "true",
            truncated=metadata.get("truncated") == "true",
            final_observation=_each(observations, lambda array: array[-1]),
            infos={name.removeprefix("infos/"): arrays[name] for name in arrays if name.startswith("infos/")},
            task=metadata.get("task"),
            has_final_observation=has_final,
            notes=self._notes.get(number, {}),
        )
        reject_change(path, self.fields, episode.fields())
        return episode

    def extremes(self, number: int) -> dict[str, Array]:
        """Return all rows of an episode's numbers; the rest of the file is not read."""
        path = self.path / self._entries[number]["file"]
        wanted = [name for name, field in self.fields.items() if is_plain(name, field.dtype)]
        try:
            with safetensors.safe_open(path, "numpy") as file:
                return {name: file.get_tensor(name) for name in wanted}
        except (safetensors.SafetensorError, OSError) as error:
            raise DatasetError(f"{path} is not a safetensors file ({one_line(error)})") from error


class LabWriter(EpisodeWriter):
    """Creates a dataset in `path`, or adds to the one that is there.

    Args:
        path: The dataset's directory.
        robot: What a new dataset calls the robot; one of another robot is not added to.
        steps_per_second: Of the task, as far as it is known.
    """

    def __init__(self, path: str | Path, *, robot: str | None = None, steps_per_second: float | None = None) -> None:
        self.path = Path(path)
        self._about = {"robot": robot, "steps_per_second": steps_per_second}
        with ExitStack() as held:
            self._lock = held.enter_context(lock_for_writing(self.path))
            self._fields, self._count = self._open()
            held.pop_all()  # released by `close`; when the dataset cannot be opened, at once

    def save(self, episode: Episode) -> int:
        """Append an episode and return its number."""
        if self._fields is None:
            self._fields = episode.fields()
            fields = {name: {"dtype": f.dtype, "shape": list(f.shape)} for name, f in self._fields.items()}
            commit_json(self.path / HEADER, {"format": FORMAT, "version": VERSION, **self._about, "fields": fields})
        reject_change(self.path, self._fields, episode.fields())
        name = f"episode-{self._count:06d}.safetensors"
        data = _encode(episode)
        commit_bytes(self.path / name, data)
        write_notes(self.path / NOTES, self._count, episode.notes)
        entry = {"file": name, "steps": len(episode), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        append_line(self.path / INDEX, json.dumps(entry).encode() + b"\n")
        self._count += 1
        return self._count - 1

    def cut(self, count: int) -> None:
        """Forget all episodes but the first `count`, for one who goes on from there."""
        if count > self._count:
            raise DatasetError(f"{self.path} has {self._count} episodes, {count} or more are expected")
        lines = (self.path / INDEX).read_bytes().splitlines(keepends=True) if self._count else []
        if count < self._count:
            commit_bytes(self.path / INDEX, b"".join(lines[:count]))
            self._fields, self._count = self._open()

    def close(self) -> None:
        """Let another process write."""
        self._lock.close()

    def _open(self) -> tuple[dict[str, Field] | None, int]:
        """Remove what a killed writer left, and return the fields and the number of episodes that are there."""
        if not (self.path / HEADER).exists():
            remove_unfinished(self.path)
            if holds_files(self.path):
                raise DatasetError(
                    f"{self.path} is not empty and has no {HEADER}: datasets need a directory of their own"
                )
            return None, 0
        header = _read_header(self.path / HEADER)
        for name, given in self._about.items():
            if None not in (given, found := header._asdict()[name]) and given != found:
                raise DatasetError(f"{self.path} has {name} {found!r}, not {given!r}")
        entries, whole = _read_index(self.path / INDEX)
        remove_unfinished(self.path)
        if (self.path / INDEX).exists():
            os.truncate(self.path / INDEX, whole)
        known = {entry["file"] for entry in entries}
        for orphan in self.path.glob("episode-*.safetensors"):
            if orphan.name not in known:
                orphan.unlink()
        keep_notes(self.path / NOTES, len(entries))
        return header.fields, len(entries)


def _each(observations: Any, function: Any) -> Any:
    if isinstance(observations, dict):
        return {key: function(array) for key, array in observations.items()}
    return function(observations)


def _encode(episode: Episode) -> bytes:
    arrays = episode.arrays()
    if episode.has_final_observation:
        for name, final in named(episode.final_observation).items():
            arrays[name] = np.concatenate([arrays[name], np.asarray(final, arrays[name].dtype)[None]])
    metadata = {
        key: json.dumps(bool(vars(episode)[key])) for key in ("terminated", "truncated", "has_final_observation")
    }
    if episode.task is not None:
        metadata["task"] = episode.task
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.numpy.save(contiguous, metadata=metadata)


class _Header(NamedTuple):
    fields: dict[str, Field]
    robot: str | None
    steps_per_second: float | None


def _read_header(path: Path) -> _Header:
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise DatasetError(f"{path}: format is {content.get('format')!r}, not {FORMAT!r}")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise DatasetError(f"{path}: version is {version!r}, not a number")
    if version > VERSION:
        raise DatasetError(f"{path}: version {version} is newer than this lab reads ({VERSION}): update it")
    robot, rate = content.get("robot"), content.get("steps_per_second")
    if not isinstance(robot, str | None) or not isinstance(rate, int | float | None):
        raise DatasetError(f"{path}: robot is a name and steps_per_second a number, not {robot!r} and {rate!r}")
    try:
        fields = {name: Field(entry["dtype"], tuple(entry["shape"])) for name, entry in content["fields"].items()}
        return _Header(fields, robot, rate)
    except (KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path}: fields must map names to dtype and shape") from error


def _read_index(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the entries of the whole lines and the bytes of those; half a line at the end was never promised."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    entries = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            entry = json.loads(line)
            is_good = (
                type(entry["steps"]) is int
                and entry["steps"] > 0
                and type(entry["bytes"]) is int
                and _EPISODE.fullmatch(entry["file"]) is not None
                and type(entry["sha256"]) is str
            )
        except (ValueError, KeyError, TypeError):
            is_good = False
        if not is_good:
            raise DatasetError(f"{path}, line {number}: not an entry with file, steps, bytes and sha256")
        entries.append(entry)
    return entries, whole


def _check_size(path: Path, entry: dict[str, Any]) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {reason(error)}") from error
    if size != entry["bytes"]:
        raise DatasetError(f"{path} has {size} bytes instead of {entry['bytes']}")


def _read_arrays(path: Path, entry: dict[str, Any]) -> tuple[dict[str, str], dict[str, Array]]:
    _check_size(path, entry)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise DatasetError(f"{path} was changed: its sha256 is not the one in {INDEX}")
    try:
        arrays = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise DatasetError(f"{path} is not a safetensors file ({one_line(error)})") from error
    if missing := sorted({"actions", "rewards"} - {name.partition("/")[0] for name in arrays}):
        raise DatasetError(f"{path} has no {missing[0]!r}")
    return header.get("__metadata__", {}), arrays
