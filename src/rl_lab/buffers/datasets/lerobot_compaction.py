"""Joins the small files of a LeRobot dataset, in such a way that a kill at any moment leaves the old or the new ones.

The new files are made in `.compaction/`. Once they are all on the disk, a mark says so: from then on whoever opens the
dataset finishes the exchange, and before that whoever writes next throws them away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_lab.buffers.datasets.files import commit, commit_bytes, lock_for_writing
from rl_lab.buffers.datasets.lerobot_columns import open_parquet, pa, pq, read_table
from rl_lab.buffers.datasets.lerobot_format import DATA, EPISODES, VIDEOS, Info, Slot
from rl_lab.buffers.datasets.lerobot_meta import EpisodeRow, VideoPart
from rl_lab.core.durable import fsync_directory

_STAGING, _MARK, _OLD = ".compaction", "READY", "old"
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Series:
    """The numbered files of a folder, and which of them become one."""

    folder: str
    suffix: str
    groups: list[list[Slot]]  # in the order of their episodes

    @classmethod
    def plan(cls, root: Path, folder: str, slots: Sequence[Slot], max_mb: float, suffix: str = ".parquet") -> Series:
        """Join neighbours as long as they are smaller than `max_mb` together."""
        groups: list[list[Slot]] = []
        room = 0.0
        for slot in dict.fromkeys(slots):
            size = slot.path(root, folder, suffix).stat().st_size
            if not groups or size > room:
                groups.append([])
                room = max_mb * _MEGABYTE
            groups[-1].append(slot)
            room -= size
        return cls(folder, suffix, groups)

    def path(self, root: Path, slot: Slot) -> Path:
        """Return a file of this series."""
        return slot.path(root, self.folder, self.suffix)

    def numbered(self) -> list[tuple[Slot, list[Slot]]]:
        """Return each new file with the old ones it is made of."""
        return [(Slot.number(number), group) for number, group in enumerate(self.groups)]

    def places(self) -> dict[Slot, Slot]:
        """Return where each old file goes."""
        return {slot: new for new, group in self.numbered() for slot in group}

    @property
    def is_done(self) -> bool:
        """Return whether nothing is to be joined."""
        return all(group == [new] for new, group in self.numbered())


def compact(root: Path, info: Info, rows: Sequence[EpisodeRow], *, data_mb: float, video_mb: float) -> None:
    """Join files of up to `data_mb` (`video_mb` for videos). Only for who holds the lock."""
    data = Series.plan(root, DATA, [row.data for row in rows], data_mb)
    meta = Series.plan(root, EPISODES, [row.meta for row in rows], data_mb)
    limit = video_mb if info.is_ours else 0  # another encoder's streams need not fit together
    videos = {
        key: Series.plan(root, f"{VIDEOS}/{key}", [row.videos[key].slot for row in rows], limit, ".mp4")
        for key in info.keys("video")
    }
    if all(series.is_done for series in (data, meta, *videos.values())):
        return
    staging = root / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    _make(root, staging, data, lambda group, path: _join_parquet([data.path(root, slot) for slot in group], path))
    places, homes = data.places(), meta.places()
    moved = [replace(row, data=places[row.data], meta=homes[row.meta]) for row in rows]
    for key, series in videos.items():
        frames = _frames(rows, key)
        _make(root, staging, series, _video_joiner(root, series, frames, info.fps))
        moved = [_move_video(row, key, series, frames, info.fps) for row in moved]
    for new, group in meta.numbered():
        _join_rows([meta.path(root, slot) for slot in group], moved, meta.path(staging, new))
    commit_bytes(staging / _MARK, b"")
    _exchange(root)


def finish_compaction(root: Path, *, is_locked: bool = False) -> None:
    """Finish an exchange that was interrupted; without its mark, a writer throws the new files away."""
    staging = root / _STAGING
    if not staging.exists() or (not is_locked and not (staging / _MARK).exists()):
        return
    lock = None if is_locked else lock_for_writing(root)
    try:
        if (staging / _MARK).exists():
            _exchange(root)
        shutil.rmtree(staging, ignore_errors=True)
    finally:
        if lock is not None:
            lock.close()


def _exchange(root: Path) -> None:
    """Put the new directories where the old ones are; every step can be repeated."""
    staging = root / _STAGING
    for folder in (DATA, EPISODES, VIDEOS):
        if (staging / folder).exists():
            if (root / folder).exists():
                (staging / _OLD / folder).parent.mkdir(parents=True, exist_ok=True)
                os.replace(root / folder, staging / _OLD / folder)
            os.replace(staging / folder, root / folder)
            fsync_directory((root / folder).parent)
    (staging / _MARK).unlink()
    fsync_directory(staging)
    shutil.rmtree(staging)


def _make(root: Path, staging: Path, series: Series, join: Callable[[Sequence[Slot], Path], None]) -> None:
    """Make the new files of a series; one that stays alone is only linked."""
    for new, group in series.numbered():
        target = series.path(staging, new)
        if len(group) == 1:
            _link(series.path(root, group[0]), target)
        else:
            _commit_joined(target, group, join)


def _commit_joined(target: Path, group: Sequence[Slot], join: Callable[[Sequence[Slot], Path], None]) -> None:
    commit(target, lambda path: join(group, path))


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        commit(target, lambda path: shutil.copyfile(source, path))
    fsync_directory(target.parent)


def _join_parquet(sources: Sequence[Path], target: Path) -> None:
    """Copy row groups: each stays one episode, which is then read alone."""
    schema = open_parquet(sources[0]).schema_arrow
    with pq.ParquetWriter(target, schema, compression="snappy") as writer:
        for source in sources:
            file = open_parquet(source)
            for group in range(file.metadata.num_row_groups):
                table = read_table(source, file, row_groups=[group]).cast(schema)
                writer.write_table(table, row_group_size=max(1, table.num_rows))


def _join_rows(sources: Sequence[Path], rows: Sequence[EpisodeRow], target: Path) -> None:
    """Join files of the episodes table; their rows say where the episodes lie from now on."""
    schema = open_parquet(sources[0]).schema_arrow
    table = pa.concat_tables([read_table(path, open_parquet(path)).cast(schema) for path in sources])
    numbers = table.column("episode_index").to_pylist()
    records: list[Mapping[str, Any]] = [{**rows[number].to_columns(), **rows[number].place()} for number in numbers]
    for name in records[0]:
        column = pa.array([record[name] for record in records], schema.field(name).type)
        table = table.set_column(schema.get_field_index(name), schema.field(name), column)
    commit(target, lambda path: pq.write_table(table, path, compression="snappy"))


def _frames(rows: Sequence[EpisodeRow], key: str) -> dict[Slot, int]:
    """Return how many frames each file of a camera shows."""
    frames: dict[Slot, int] = {}
    for row in rows:
        slot = row.videos[key].slot
        frames[slot] = frames.get(slot, 0) + row.length
    return frames


def _video_joiner(
    root: Path, series: Series, frames: Mapping[Slot, int], fps: float
) -> Callable[[Sequence[Slot], Path], None]:
    from rl_lab.buffers.datasets.video_file import join_videos

    def join(group: Sequence[Slot], target: Path) -> None:
        join_videos([series.path(root, slot) for slot in group], [frames[slot] for slot in group], fps, target)

    return join


def _move_video(row: EpisodeRow, key: str, series: Series, frames: Mapping[Slot, int], fps: float) -> EpisodeRow:
    """Return the row with its place in the joined video: after the files that come before its own."""
    part = row.videos[key]
    group = next(group for group in series.groups if part.slot in group)
    before_s = sum(frames[slot] for slot in group[: group.index(part.slot)]) / fps
    moved = VideoPart(series.places()[part.slot], part.begin_s + before_s, part.end_s + before_s)
    return replace(row, videos={**row.videos, key: moved})
