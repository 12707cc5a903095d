"""The tables under `meta/` of a LeRobot dataset: one row per episode, and the list of tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.files import commit, commit_json
from rl_lab.buffers.datasets.format import Array, DatasetError
from rl_lab.buffers.datasets.lerobot_columns import open_parquet, pa, pq, read_table
from rl_lab.buffers.datasets.lerobot_format import DATA, EPISODES, STATS, TASKS, VIDEOS, Feature, Info, Slot
from rl_lab.buffers.datasets.lerobot_stats import Stats

_INDEX = "__index_level_0__"  # what pandas calls an index without a name


@dataclass(frozen=True)
class VideoPart:
    """Where an episode lies in a video file."""

    slot: Slot
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class EpisodeRow:
    """One row of the episodes table, without its statistics."""

    number: int
    tasks: tuple[str, ...]
    length: int
    begin: int  # index of its first frame in the dataset
    data: Slot
    meta: Slot
    videos: Mapping[str, VideoPart]

    def to_columns(self) -> dict[str, Any]:
        """Return it under the names of the columns, the place of the row itself last."""
        row: dict[str, Any] = {"episode_index": self.number, "tasks": list(self.tasks), "length": self.length}
        row |= {"data/chunk_index": self.data.chunk, "data/file_index": self.data.file}
        row |= {"dataset_from_index": self.begin, "dataset_to_index": self.begin + self.length}
        for key, part in self.videos.items():
            row |= {f"videos/{key}/chunk_index": part.slot.chunk, f"videos/{key}/file_index": part.slot.file}
            row |= {f"videos/{key}/from_timestamp": part.begin_s, f"videos/{key}/to_timestamp": part.end_s}
        return row

    def place(self) -> dict[str, int]:
        """Return the columns that say where the row lies."""
        return {"meta/episodes/chunk_index": self.meta.chunk, "meta/episodes/file_index": self.meta.file}

    def files(self, root: Path) -> list[Path]:
        """Return the files that hold this episode."""
        videos = [part.slot.path(root, f"{VIDEOS}/{key}", ".mp4") for key, part in self.videos.items()]
        return [self.data.path(root, DATA), self.meta.path(root, EPISODES), *videos]


def episode_tables(root: Path) -> list[tuple[Path, Any]]:
    """Return the files of the episodes table in order, opened."""
    return [(path, open_parquet(path)) for path in sorted((root / EPISODES).glob("*/file-*.parquet"))]


def read_rows(root: Path, info: Info) -> list[EpisodeRow]:
    """Return the rows of the dataset's episodes, checked; rows past `total_episodes` were never promised."""
    rows: dict[int, EpisodeRow] = {}
    for path, file in episode_tables(root):
        wanted = [name for name in file.schema_arrow.names if not name.startswith("stats/")]
        for record in read_table(path, file, columns=wanted).to_pylist():
            row = _row(path, record, info.keys("video"))
            if row.number < info.total_episodes and rows.setdefault(row.number, row) is not row:
                raise DatasetError(f"{path}: episode_index {row.number} occurs twice")
    frames = 0
    for number in range(info.total_episodes):
        if number not in rows:
            raise DatasetError(f"{root / EPISODES} has no row of episode {number} (info.json: {info.total_episodes})")
        if rows[number].begin != frames:
            raise DatasetError(
                f"{root / EPISODES}: episode {number} begins at frame {rows[number].begin} instead of {frames}"
            )
        frames += rows[number].length
    if frames != info.total_frames:
        raise DatasetError(f"{root / EPISODES}: the episodes have {frames} frames, info.json says {info.total_frames}")
    return [rows[number] for number in range(info.total_episodes)]


def _row(path: Path, record: Mapping[str, Any], videos: Sequence[str]) -> EpisodeRow:
    try:
        begin, end, length = record["dataset_from_index"], record["dataset_to_index"], record["length"]
        parts = {
            key: VideoPart(
                Slot(record[f"videos/{key}/chunk_index"], record[f"videos/{key}/file_index"]),
                float(record[f"videos/{key}/from_timestamp"]),
                float(record[f"videos/{key}/to_timestamp"]),
            )
            for key in videos
        }
        row = EpisodeRow(
            number=record["episode_index"],
            tasks=tuple(record["tasks"] or ()),
            length=length,
            begin=begin,
            data=Slot(record["data/chunk_index"], record["data/file_index"]),
            meta=Slot(record["meta/episodes/chunk_index"], record["meta/episodes/file_index"]),
            videos=parts,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{path} lacks the column or value {error}") from error
    places = (row.number, *row.data, *row.meta, *(n for part in parts.values() for n in part.slot))
    if not all(type(n) is int and n >= 0 for n in (*places, begin, end, length)):
        raise DatasetError(f"{path}: episode {row.number} lacks a number, or has one below 0")
    if not all(0 <= part.begin_s <= part.end_s < math.inf for part in parts.values()):
        raise DatasetError(f"{path}: episode {row.number} has a video that does not begin and end at a time")
    if length < 1 or end - begin != length:
        raise DatasetError(f"{path}: episode {row.number} has length {length} and frames {begin} to {end}")
    return row


def read_stats(root: Path, info: Info) -> Iterator[dict[str, Stats]]:
    """Yield the statistics of each promised episode, in order."""
    found: dict[int, dict[str, Stats]] = {}
    for path, file in episode_tables(root):
        names = [name for name in file.schema_arrow.names if name.startswith("stats/") or name == "episode_index"]
        for record in read_table(path, file, columns=names).to_pylist():
            stats: dict[str, Stats] = {}
            for name, value in record.items():
                if name != "episode_index" and value is not None:
                    feature, _, statistic = name.removeprefix("stats/").rpartition("/")
                    stats.setdefault(feature, {})[statistic] = np.array(value)
            found[record["episode_index"]] = stats
    for number in range(info.total_episodes):
        if any(not {"mean", "std", "count", "min", "max"} <= part.keys() for part in found[number].values()):
            raise DatasetError(f"{root / EPISODES}: the statistics of episode {number} are incomplete")
        yield found[number]


def read_extremes(root: Path, features: Sequence[str]) -> dict[int, dict[str, Array]]:
    """Return by episode the smallest and the largest row [2, ...] of those features that have statistics."""
    found: dict[int, dict[str, Array]] = {}
    for path, file in episode_tables(root):
        present = set(file.schema_arrow.names)
        pairs = {name: (f"stats/{name}/min", f"stats/{name}/max") for name in features}
        pairs = {name: pair for name, pair in pairs.items() if present.issuperset(pair)}
        columns = ["episode_index", *(column for pair in pairs.values() for column in pair)]
        for record in read_table(path, file, columns=columns).to_pylist():
            rows = {name: [record[column] for column in pair] for name, pair in pairs.items()}
            found[record["episode_index"]] = {n: np.array(pair) for n, pair in rows.items() if None not in pair}
    return found


def write_row(root: Path, row: EpisodeRow, stats: Mapping[str, Stats], like: Any) -> Any:
    """Write a file with this one row and return its schema, which is `like` where there is one."""
    record = row.to_columns()
    record |= {f"stats/{name}/{key}": value.tolist() for name, part in stats.items() for key, value in part.items()}
    record |= row.place()
    table = pa.Table.from_pylist([record])
    if like is not None:  # readers join the files of a dataset only when their columns are the same
        table = pa.Table.from_pylist([{name: record.get(name) for name in like.names}], schema=like)
    path = row.meta.path(root, EPISODES)
    commit(path, lambda target: pq.write_table(table, target, compression="snappy"))
    return open_parquet(path).schema_arrow if like is None else like  # as the next process will find it


def write_stats(root: Path, stats: Mapping[str, Stats]) -> None:
    """Write the statistics of the whole dataset."""
    content = {name: {key: value.tolist() for key, value in part.items()} for name, part in stats.items()}
    commit_json(root / STATS, content)


def read_tasks(root: Path) -> dict[str, int]:
    """Return the number of each task."""
    path = root / TASKS
    if not path.exists():
        return {}
    file = open_parquet(path)
    names = file.schema_arrow.names
    texts = next((name for name in (_INDEX, "task") if name in names), None)
    if "task_index" not in names or texts is None:
        raise DatasetError(f"{path} has no columns task_index and {_INDEX} (it has: {', '.join(names)})")
    table = read_table(path, file)
    return dict(zip(table.column(texts).to_pylist(), table.column("task_index").to_pylist(), strict=True))


def write_tasks(root: Path, tasks: Mapping[str, int]) -> None:
    """Write the list of tasks as the pandas frame that LeRobot reads."""
    column = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    index = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    described = {
        "index_columns": [_INDEX],
        "column_indexes": [{"name": None, "field_name": None, **index, "metadata": {"encoding": "UTF-8"}}],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **column},
            {"name": None, "field_name": _INDEX, **index},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    ordered = sorted(tasks, key=tasks.__getitem__)
    table = pa.table(
        {"task_index": pa.array([tasks[t] for t in ordered], pa.int64()), _INDEX: pa.array(ordered, pa.string())}
    )
    table = table.replace_schema_metadata({"pandas": json.dumps(described)})
    commit(root / TASKS, lambda path: pq.write_table(table, path))


def check_data_schema(path: Path, names: Sequence[str], features: Mapping[str, Feature]) -> None:
    """Raise when a data file lacks a column that `info.json` declares."""
    for name, feature in features.items():
        if feature.dtype != "video" and name not in names:
            raise DatasetError(f"{path} has no column {name!r} (it has: {', '.join(names)})")
