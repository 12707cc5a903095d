"""A dataset as tables that every program reads; numbers come back to the bit. Pictures have no place in it.

    fields.json    format, version, what every array looks like, robot and steps per second
    steps.csv      one line per step and one more for a final observation: episode, step, then one column per number
    episodes.csv   episode, steps, terminated, has_final_observation, task, notes (JSON)

Columns are called `actions[2]`, `observations/state[0]`, `rewards`.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.files import append_line, commit_json, holds_files, lock_for_writing, read_json
from rl_lab.buffers.datasets.format import (
    Array,
    DatasetError,
    Episode,
    EpisodeReader,
    EpisodeWriter,
    Field,
    named,
    reject_change,
    unnamed,
)
from rl_lab.core.durable import reason

FIELDS, STEPS, EPISODES = "fields.json", "steps.csv", "episodes.csv"
FORMAT, VERSION = "rl-lab-csv", 1
_ABOUT = ("episode", "steps", "terminated", "has_final_observation", "task", "notes")


class CsvWriter(EpisodeWriter):
    """Writes a new dataset into an empty directory.

    Args:
        path: The directory.
        robot: What files call the robot.
        steps_per_second: Of the task, as far as it is known.
    """

    def __init__(self, path: str | Path, *, robot: str | None = None, steps_per_second: float | None = None) -> None:
        self.path, self._count = Path(path), 0
        self._about = {"robot": robot, "steps_per_second": steps_per_second}
        self._fields: dict[str, Field] = {}
        self._lock = lock_for_writing(self.path)
        if holds_files(self.path):
            self._lock.close()
            raise DatasetError(f"{self.path} is not empty: tables need a directory of their own")

    def save(self, episode: Episode) -> int:
        """Append an episode and return its number."""
        fields = episode.fields()
        if not self._fields:
            self._begin(fields)
        reject_change(self.path, self._fields, fields)
        append_line(self.path / STEPS, "".join(_line(row) for row in self._rows(episode)).encode())
        about = [self._count, len(episode), int(episode.terminated), int(episode.has_final_observation)]
        notes = json.dumps(dict(episode.notes)) if episode.notes else ""
        append_line(self.path / EPISODES, _line([*about, episode.task or "", notes]).encode())
        self._count += 1
        return self._count - 1

    def close(self) -> None:
        """Let another process write."""
        self._lock.close()

    def _begin(self, fields: Mapping[str, Field]) -> None:
        if pictures := [name for name, field in fields.items() if field.is_image]:
            raise DatasetError(f"a table has no place for pictures: {', '.join(pictures)} (--leave-out names them)")
        self._fields = dict(fields)
        described = {name: {"dtype": field.dtype, "shape": list(field.shape)} for name, field in fields.items()}
        commit_json(self.path / FIELDS, {"format": FORMAT, "version": VERSION, **self._about, "fields": described})
        append_line(self.path / STEPS, _line(["episode", "step", *_columns(fields)]).encode())
        append_line(self.path / EPISODES, _line(_ABOUT).encode())

    def _rows(self, episode: Episode) -> Iterator[list[Any]]:
        columns = {name: array.reshape(len(episode), -1) for name, array in episode.arrays().items()}
        for step in range(len(episode)):
            yield [self._count, step, *itertools.chain(*(_texts(column[step]) for column in columns.values()))]
        if episode.has_final_observation:
            finals = {name: np.asarray(array) for name, array in named(episode.final_observation).items()}
            yield [
                *(self._count, len(episode)),
                *itertools.chain(
                    *(
                        _texts(finals[name].reshape(-1)) if name in finals else [""] * column.shape[1]
                        for name, column in columns.items()
                    )
                ),
            ]


class CsvReader(EpisodeReader):
    """Reads what `CsvWriter` wrote; the table is read once."""

    format = "csv"

    def __init__(self, path: Path) -> None:
        self.path = path
        content = read_json(path / FIELDS)
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise DatasetError(f"{path / FIELDS}: format and version are not {FORMAT!r} and {VERSION}")
        self.robot, self.steps_per_second = content.get("robot"), content.get("steps_per_second")
        try:
            self._fields = {n: Field(str(f["dtype"]), tuple(f["shape"])) for n, f in content["fields"].items()}
            self._about = [dict(zip(_ABOUT, row, strict=True)) for row in _table(path / EPISODES, _ABOUT)]
            self.lengths = [int(about["steps"]) for about in self._about]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DatasetError(f"{path}: {FIELDS} or {EPISODES} is damaged ({error})") from error
        rows = _table(path / STEPS, ("episode", "step", *_columns(self._fields)))
        self._rows = {number: list(group) for number, group in itertools.groupby(rows, key=lambda row: row[0])}

    def read(self, number: int) -> Episode:
        """Return one episode."""
        about, rows, steps = self._about[number], self._rows.get(str(number), []), self.lengths[number]
        has_final = about["has_final_observation"] == "1"
        where = f"{self.path / STEPS}, episode {number}"
        if [row[1] for row in rows] != [str(step) for step in range(steps + has_final)]:
            raise DatasetError(f"{where} has {len(rows)} lines instead of steps 0 to {steps + has_final - 1}")
        arrays, begin = {}, 2
        for name, field in self._fields.items():
            width = math.prod(field.shape)
            own = rows if name.startswith("observations") else rows[:steps]
            arrays[name] = _array(f"{where}: {name}", [row[begin : begin + width] for row in own], field)
            begin += width
        observations: Any = unnamed(arrays)
        each = observations if isinstance(observations, dict) else {"": observations}
        final: Any = {key: array[-1] for key, array in each.items()}
        kept: Any = {key: array[:steps] for key, array in each.items()}
        return Episode(
            observations=kept if isinstance(observations, dict) else kept[""],
            actions=unnamed(arrays, "actions"),
            rewards=arrays["rewards"],
            terminated=about["terminated"] == "1",
            truncated=about["terminated"] != "1",
            final_observation=final if isinstance(observations, dict) else final[""],
            infos={name.removeprefix("infos/"): a for name, a in arrays.items() if name.startswith("infos/")},
            task=about["task"] or None,
            has_final_observation=has_final,
            notes=json.loads(about["notes"]) if about["notes"] else {},
        )


def _columns(fields: Mapping[str, Field]) -> list[str]:
    names: list[str] = []
    for name, field in fields.items():
        indices = itertools.product(*(range(size) for size in field.shape))
        names += [name + "".join(f"[{place}]" for place in index) for index in indices]
    return names


def _texts(row: Array) -> list[str]:
    """Return numbers as the shortest text that gives them back."""
    if row.dtype.kind == "f":
        return [np.format_float_scientific(value, trim="-") if value != 0 else repr(float(value)) for value in row]
    return [str(int(value)) for value in row]


def _array(where: str, rows: list[list[str]], field: Field) -> Array:
    try:
        if field.dtype.startswith("float"):
            numbers = np.array(rows, dtype=np.str_).astype(field.dtype)
        else:
            numbers = np.array([[int(text) for text in row] for row in rows]).astype(field.dtype)
        return numbers.reshape(len(rows), *field.shape)
    except (ValueError, OverflowError, TypeError) as error:
        raise DatasetError(f"{where} has a cell that is no {field.dtype} ({error})") from error


def _line(cells: Any) -> str:
    texts = [str(cell) for cell in cells]
    return (
        ",".join(f'"{text.replace(chr(34), chr(34) * 2)}"' if set(text) & set(',"\n\r') else text for text in texts)
        + "\n"
    )


def _table(path: Path, titles: Any) -> list[list[str]]:
    try:
        with open(path, newline="") as file:
            found, *rows = csv.reader(file)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {reason(error)}") from error
    except (csv.Error, UnicodeDecodeError, ValueError) as error:
        raise DatasetError(f"{path} is no table ({error})") from error
    if found != list(titles):
        raise DatasetError(f"{path}: the columns are not those that {FIELDS} names")
    for number, row in enumerate(rows, 2):
        if len(row) != len(found):
            raise DatasetError(f"{path}, line {number}: {len(row)} cells instead of {len(found)}")
    return rows
