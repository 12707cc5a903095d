"""Reads LeRobotDataset v3.0 directories: Parquet, embedded pictures and mp4, without lerobot, datasets or torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.format import Array, DatasetError, DoneMeans, Episode, EpisodeReader, plain_numbers
from rl_lab.buffers.datasets.lerobot_columns import from_arrow, open_parquet, pa, pictures_from_arrow, read_table
from rl_lab.buffers.datasets.lerobot_compaction import finish_compaction
from rl_lab.buffers.datasets.lerobot_episode import episode_of
from rl_lab.buffers.datasets.lerobot_format import ACTION, AUTOMATIC, DATA, NOTES, VIDEOS, read_info
from rl_lab.buffers.datasets.lerobot_meta import EpisodeRow, check_data_schema, read_extremes, read_rows, read_tasks
from rl_lab.buffers.datasets.notes import read_notes

_TIME_TOLERANCE_S = 1e-4


class LeRobotReader(EpisodeReader):
    """Frames of an episode become an `Episode` without a final observation: the format has no place for it.

    `done_means` says what `next.done` stands for in datasets without `next.truncated`. Text is left out, and
    the task is that of the first frame. Without `is_checked` a damaged file is told when one of its episodes is read.
    """

    has_final_observations = False
    format = "lerobot"

    def __init__(self, path: Path, *, done_means: DoneMeans = "terminated", is_checked: bool = True) -> None:
        self.path, self._done_means = path, done_means
        finish_compaction(path)
        self.info = read_info(path)
        self.steps_per_second, self.robot = self.info.fps, self.info.robot_type
        self._rows = read_rows(path, self.info)
        self._tasks = {number: task for task, number in read_tasks(path).items()}
        self.lengths = [row.length for row in self._rows]
        if is_checked:
            self._check_files()
        self._notes = read_notes(path / NOTES)
        self._stats: dict[int, dict[str, Array]] | None = None  # of each episode, read when they are asked for
        self._open: tuple[Path, Any, list[tuple[int, int] | None]] | None = None  # the data file of the last episode

    def read(self, number: int) -> Episode:
        """Return one episode with all its frames decoded."""
        return self._read(number, with_pictures=True)

    def glance(self, number: int) -> Episode:
        """Return one episode without its pictures."""
        return self._read(number, with_pictures=False)

    def extremes(self, number: int) -> dict[str, Array]:
        """Return the smallest and largest row of each feature from the tables under `meta/`, where they are there."""
        if self._stats is None:
            self._stats = read_extremes(self.path, [n for n, f in self.info.features.items() if not f.is_picture])
        found = self._stats.get(number, {})
        if ACTION not in found:
            return super().extremes(number)
        return plain_numbers({"actions" if name == ACTION else name: rows for name, rows in found.items()})

    def _read(self, number: int, *, with_pictures: bool) -> Episode:
        row = self._rows[number]
        path = row.data.path(self.path, DATA)
        table = self._frames(path, row)
        where = f"{path}, episode {number}"
        automatic = {n: from_arrow(f"{where}: {n!r}", table[n], self.info.features[n]).reshape(-1) for n in AUTOMATIC}
        self._check_frames(where, automatic, row)
        columns = {
            name: self._column(f"{where}: {name!r}", name, table, row)
            if with_pictures or not feature.is_picture
            else np.zeros((row.length, 0), np.uint8)
            for name, feature in self.info.features.items()
            if name not in AUTOMATIC and feature.dtype != "string"
        }
        task = self._tasks.get(int(automatic["task_index"][0]))
        if task is None and self._tasks:
            raise DatasetError(f"{where}: task_index {automatic['task_index'][0]} is not in meta/tasks.parquet")
        episode = episode_of(self.info, columns, task or None, done_means=self._done_means, where=where)
        return replace(episode, notes=self._notes.get(number, {}))

    def _check_files(self) -> None:
        """Raise when a file that holds an episode is missing, or a table is not whole."""
        for path in dict.fromkeys(path for row in self._rows for path in row.files(self.path)):
            if not path.is_file():
                raise DatasetError(f"{path} is missing")
        for path in dict.fromkeys(row.data.path(self.path, DATA) for row in self._rows):
            check_data_schema(path, open_parquet(path).schema_arrow.names, self.info.features)

    def _frames(self, path: Path, row: EpisodeRow) -> Any:
        """Return the rows of one episode; only the row groups that can hold them are read."""
        if self._open is None or self._open[0] != path:
            file = open_parquet(path)
            check_data_schema(path, file.schema_arrow.names, self.info.features)
            self._open = (path, file, _index_ranges(file))
        _, file, ranges = self._open
        end = row.begin + row.length
        groups = [g for g, span in enumerate(ranges) if span is None or (span[1] >= row.begin and span[0] < end)]
        table = read_table(path, file, row_groups=groups)
        index = table["index"].to_numpy()
        return table.filter(pa.array((index >= row.begin) & (index < end)))

    def _check_frames(self, where: str, columns: dict[str, Array], row: EpisodeRow) -> None:
        if len(columns["index"]) != row.length:
            raise DatasetError(f"{where} has {len(columns['index'])} of {row.length} frames")
        steps = np.arange(row.length)
        wanted = {"index": row.begin + steps, "frame_index": steps, "episode_index": np.full(row.length, row.number)}
        for name, values in wanted.items():
            if not np.array_equal(columns[name], values):
                at = int((columns[name] != values).argmax())
                raise DatasetError(f"{where}: {name} is {columns[name][at]} instead of {values[at]} at frame {at}")
        late = np.abs(columns["timestamp"] - steps / self.info.fps)
        if (late > _TIME_TOLERANCE_S + 1e-6 * columns["timestamp"]).any():
            at = int(late.argmax())
            raise DatasetError(
                f"{where}: timestamp {columns['timestamp'][at]:.4f} s at frame {at} does not fit fps {self.info.fps:g}"
            )

    def _column(self, where: str, name: str, table: Any, row: EpisodeRow) -> Array:
        feature = self.info.features[name]
        if feature.dtype == "video":
            from rl_lab.buffers.datasets.video_file import read_video

            part = row.videos[name]
            path = part.slot.path(self.path, f"{VIDEOS}/{name}", ".mp4")
            return read_video(path, part.begin_s, row.length, self.info.fps, feature.shape)
        if feature.dtype == "image":
            return pictures_from_arrow(where, table[name], feature, self.path)
        return from_arrow(where, table[name], feature)


def _index_ranges(file: Any) -> list[tuple[int, int] | None]:
    """Return the smallest and largest frame index of each row group, as far as the file says."""
    names = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
    ranges: list[tuple[int, int] | None] = []
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(names.index("index")).statistics
        ranges.append((statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None)
    return ranges
