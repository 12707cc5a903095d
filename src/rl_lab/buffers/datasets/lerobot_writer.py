"""Writes LeRobotDataset v3.0 so that a kill at any moment loses no saved episode.

Each episode is a Parquet file, a row in a file of its own and, with videos, one mp4 per camera: every file appears
whole or not at all, and `info.json`, written last, says how many episodes count. `close` joins the files.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from rl_lab.buffers.datasets.files import commit, commit_json, holds_files, lock_for_writing, remove_unfinished
from rl_lab.buffers.datasets.format import Array, DatasetError, Episode, EpisodeWriter, reject_change
from rl_lab.buffers.datasets.lerobot_columns import arrow_schema, pa, pictures_to_arrow, pq, to_arrow
from rl_lab.buffers.datasets.lerobot_compaction import compact, finish_compaction
from rl_lab.buffers.datasets.lerobot_episode import automatic_columns, columns_of, feature_of, infer_info
from rl_lab.buffers.datasets.lerobot_format import (
    AUTOMATIC,
    DATA,
    EPISODES,
    EXTRA,
    INFO,
    NOTES,
    VIDEO_CODECS,
    VIDEOS,
    Info,
    Slot,
    read_info,
    seal,
)
from rl_lab.buffers.datasets.lerobot_meta import (
    EpisodeRow,
    VideoPart,
    episode_tables,
    read_rows,
    read_stats,
    read_tasks,
    write_row,
    write_stats,
    write_tasks,
)
from rl_lab.buffers.datasets.lerobot_stats import Stats, episode_stats, join_stats
from rl_lab.buffers.datasets.lerobot_trim import trim_files
from rl_lab.buffers.datasets.notes import keep_notes, write_notes
from rl_lab.core.durable import fsync_directory
from rl_lab.core.errors import ConfigError, unknown_name

Pictures = Literal["png", "jpeg", "video"]


class LeRobotWriter(EpisodeWriter):
    """Creates a dataset in `path`, or adds to the one that is there.

    Args:
        path: The dataset's directory.
        fps: Frames per second; may be left out when the dataset exists.
        robot_type: What `info.json` calls the robot.
        pictures: How images are kept: exactly (`png`), as JPEG, or as `video`.
        jpeg_quality: 1 to 95.
        video_codec: `libsvtav1`, `h264` or `hevc`.
        video_crf: The encoder's constant rate factor: less is better and larger.
        data_mb: How large `close` lets data files grow; 0 leaves one per episode.
        video_mb: How large `close` lets video files grow.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        fps: float | None = None,
        robot_type: str | None = None,
        pictures: Pictures = "png",
        jpeg_quality: int = 95,
        video_codec: str = "libsvtav1",
        video_crf: int = 30,
        data_mb: float = 100,
        video_mb: float = 200,
    ) -> None:
        check_options(fps, pictures, jpeg_quality, video_codec)
        self.path = Path(path)
        self._fps, self._robot_type, self._pictures = fps, robot_type, pictures
        self._jpeg_quality = jpeg_quality if pictures == "jpeg" else None
        self._codec, self._crf, self._limits = video_codec, video_crf, {"data_mb": data_mb, "video_mb": video_mb}
        self._info: Info | None = None
        self._rows: list[EpisodeRow] = []
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, Stats] = {}
        self._row_schema: Any = None
        self._sealed: list[Any] = []  # how the files were when the lock was released
        with ExitStack() as held:
            self._lock = held.enter_context(lock_for_writing(self.path))
            self._open()
            held.pop_all()  # released by `close`; when the dataset cannot be opened, at once

    def save(self, episode: Episode) -> int:
        """Append an episode and return its number; its final observation has no place in the format."""
        columns = columns_of(episode)
        info = self._info or self._begin(episode)
        self._check(columns, info)
        row = self._row(info, len(episode), episode.task or "")
        task = self._tasks.get(row.tasks[0], len(self._tasks))
        columns |= automatic_columns(row.number, row.begin, row.length, info.fps, task)
        stats = {name: episode_stats(columns[name], feature) for name, feature in info.features.items()}
        self._write_data(row, columns, info)
        for key, part in row.videos.items():
            self._write_video(key, part, columns[key], info)
        self._row_schema = write_row(self.path, row, stats, self._row_schema)
        tasks, joined = self._tasks, join_stats([self._stats, stats] if self._stats else [stats])
        if row.tasks[0] not in tasks:
            tasks = {**tasks, row.tasks[0]: len(tasks)}
            write_tasks(self.path, tasks)
        write_stats(self.path, joined)
        write_notes(self.path / NOTES, row.number, episode.notes)
        counts: dict[str, Any] = {
            "total_episodes": row.number + 1,
            "total_frames": row.begin + row.length,
            "total_tasks": len(tasks),
        }
        info = replace(info, **counts)
        commit_json(self.path / INFO, info.to_json())  # from here on the episode is there
        self._info, self._tasks, self._stats = info, tasks, joined
        self._rows.append(row)
        return row.number

    def cut(self, count: int) -> None:
        """Forget all episodes but the first `count`, for one who goes on from there."""
        if count > len(self._rows):
            raise DatasetError(f"{self.path} has {len(self._rows)} episodes, {count} or more are expected")
        if self._info is None or count == len(self._rows):
            return
        self._fps, kept = self._info.fps, self._rows[:count]
        if not kept:
            (self.path / INFO).unlink()
            fsync_directory((self.path / INFO).parent)
        else:
            counts: dict[str, Any] = {
                "total_episodes": count,
                "total_frames": kept[-1].begin + kept[-1].length,
                "total_tasks": 1 + max(self._tasks[task] for row in kept for task in row.tasks),
            }
            commit_json(self.path / INFO, replace(self._info, **counts).to_json())  # later ones do not count any more
        self._open()

    def compact(self) -> None:
        """Join the files."""
        if self._info is not None and self._rows:
            compact(self.path, self._info, self._rows, **self._limits)
            self._load()

    def close(self) -> None:
        """Join the files and let another process write."""
        if self._lock.closed:
            return
        try:
            self.compact()
        finally:
            self._lock.close()

    def release(self) -> None:
        """Let another process write and leave the files as they are; `reclaim` goes on."""
        self._sealed = seal(self.path)
        self._lock.close()

    def reclaim(self) -> None:
        """Be the only writer again; what others have written meanwhile is read first."""
        with ExitStack() as held:
            self._lock = held.enter_context(lock_for_writing(self.path))
            if seal(self.path) != self._sealed:
                self._open()
            held.pop_all()

    def _open(self) -> None:
        """Finish or remove what a killed writer left, and read what is there."""
        self._info, self._rows, self._tasks, self._stats, self._row_schema = None, [], {}, {}, None
        finish_compaction(self.path, is_locked=True)
        if (self.path / INFO).exists():
            remove_unfinished(self.path)
            self._load()
        elif (self.path / EXTRA).exists():  # killed before its first episode counted
            for folder in (DATA, "meta", VIDEOS):
                shutil.rmtree(self.path / folder, ignore_errors=True)
        else:
            remove_unfinished(self.path)
            if holds_files(self.path):
                raise DatasetError(
                    f"{self.path} is not empty and has no {INFO}: datasets need a directory of their own"
                )
        if self._info is None and self._fps is None:
            raise ConfigError(f"fps is needed to begin a LeRobot dataset in {self.path}")

    def _load(self) -> None:
        info = self._info = read_info(self.path)
        if self._fps is not None and self._fps != info.fps:
            raise DatasetError(f"{self.path} has fps {info.fps:g}, not {self._fps:g}")
        for key in info.keys("video"):  # one dataset, one codec
            stream = (info.features[key].info or {}).get("video.codec")
            self._codec = next((encoder for encoder, name in VIDEO_CODECS.items() if name == stream), self._codec)
        self._rows = read_rows(self.path, info)
        self._tasks = read_tasks(self.path)
        tables = episode_tables(self.path)
        self._row_schema = tables[0][1].schema_arrow if tables else None
        self._stats = join_stats(read_stats(self.path, info))
        self._remove_orphans(info)
        keep_notes(self.path / NOTES, info.total_episodes)

    def _remove_orphans(self, info: Info) -> None:
        """Take episodes that do not count out of statistics and tasks, then out of the files."""
        known = {path for row in self._rows for path in row.files(self.path)}
        found = {p for f in (DATA, EPISODES, VIDEOS) for p in (self.path / f).rglob("*") if p.is_file()}
        orphans, is_ours = sorted(found - known), (self.path / EXTRA).exists()
        if orphans and not is_ours:
            raise DatasetError(f"{orphans[0]} belongs to no episode of {self.path}: was its writer killed?")
        if not (is_ours and trim_files(self.path, info, self._rows)) and not orphans:
            return
        self._tasks = {task: number for task, number in self._tasks.items() if number < info.total_tasks}
        write_stats(self.path, self._stats)
        write_tasks(self.path, self._tasks)
        for orphan in orphans:
            orphan.unlink()

    def _begin(self, episode: Episode) -> Info:
        """Describe a new dataset; the lab's own file comes first, so that a kill leaves something known."""
        assert self._fps is not None
        info = infer_info(episode, self._fps, "video" if self._pictures == "video" else "image", self._robot_type)
        if videos := info.keys("video"):
            from rl_lab.buffers.datasets.video_file import video_info

            columns = columns_of(episode)
            described = {
                k: replace(info.features[k], info=video_info(columns[k], info.fps, self._codec)) for k in videos
            }
            info = replace(info, features=info.features | described)
        commit_json(self.path / EXTRA, info.extra_json())
        return info

    def _check(self, columns: dict[str, Array], info: Info) -> None:
        declared = {name: feature for name, feature in info.features.items() if name not in AUTOMATIC}
        found = {name: feature_of(array, declared.get(name)) for name, array in columns.items()}
        reject_change(self.path, {n: str(f) for n, f in declared.items()}, {n: str(f) for n, f in found.items()})
        if not (self.path / EXTRA).exists():  # a dataset of others: what is unfinished from now on is ours
            commit_json(self.path / EXTRA, info.extra_json())

    def _row(self, info: Info, length: int, task: str) -> EpisodeRow:
        last = self._rows[-1] if self._rows else None
        videos = {
            key: VideoPart(Slot.after([row.videos[key].slot for row in self._rows]), 0.0, length / info.fps)
            for key in info.keys("video")
        }
        return EpisodeRow(
            number=len(self._rows),
            tasks=(task,),
            length=length,
            begin=0 if last is None else last.begin + last.length,
            data=Slot.after([row.data for row in self._rows]),
            meta=Slot.after([row.meta for row in self._rows]),
            videos=videos,
        )

    def _write_data(self, row: EpisodeRow, columns: dict[str, Array], info: Info) -> None:
        schema = arrow_schema(info.features)
        arrays = [
            pictures_to_arrow(columns[name], jpeg_quality=self._jpeg_quality)
            if info.features[name].is_picture
            else to_arrow(columns[name], info.features[name])
            for name in schema.names
        ]
        table = pa.Table.from_arrays(arrays, schema=schema)
        commit(row.data.path(self.path, DATA), lambda path: pq.write_table(table, path, compression="snappy"))

    def _write_video(self, key: str, part: VideoPart, frames: Array, info: Info) -> None:
        from rl_lab.buffers.datasets.video_file import write_video

        path = part.slot.path(self.path, f"{VIDEOS}/{key}", ".mp4")
        commit(path, lambda target: write_video(target, frames, info.fps, codec=self._codec, crf=self._crf))


def check_options(fps: float | None, pictures: str, jpeg_quality: int, video_codec: str) -> None:
    """Raise when an option cannot be."""
    if fps is not None and not 0 < fps < 1e6:
        raise ConfigError(f"fps must be positive, got {fps}")
    if pictures not in get_args(Pictures):
        raise ConfigError(unknown_name("way to keep pictures", pictures, get_args(Pictures)))
    if not 1 <= jpeg_quality <= 95:
        raise ConfigError(f"jpeg_quality must be 1 to 95, got {jpeg_quality}")
    if video_codec not in VIDEO_CODECS:
        raise ConfigError(unknown_name("video codec", video_codec, VIDEO_CODECS))


def compact_lerobot(path: str | Path, *, data_mb: float = 100, video_mb: float = 200) -> None:
    """Join the small files of a LeRobot dataset, after removing what a killed writer left."""
    LeRobotWriter(path, data_mb=data_mb, video_mb=video_mb).close()
