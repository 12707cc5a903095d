"""Takes episodes that do not count out of the joined files of a LeRobot dataset, one file at a time.

`info.json` says how many episodes count. When a run is resumed that number may fall, and files that hold later episodes
beside earlier ones are written anew without them. Videos keep frames that nothing points to until files are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_lab.buffers.datasets.files import commit
from rl_lab.buffers.datasets.lerobot_columns import open_parquet, pa, pq, read_table
from rl_lab.buffers.datasets.lerobot_format import DATA, EPISODES, Info, Slot
from rl_lab.buffers.datasets.lerobot_meta import EpisodeRow


def trim_files(root: Path, info: Info, rows: Sequence[EpisodeRow]) -> bool:
    """Drop frames and rows past those that count, where a file holds both; return whether there were any."""
    frames: dict[Slot, int] = {}
    episodes: dict[Slot, int] = {}
    for row in rows:
        frames[row.data] = frames.get(row.data, 0) + row.length
        episodes[row.meta] = episodes.get(row.meta, 0) + 1
    data = [_trim(slot.path(root, DATA), "index", info.total_frames, count) for slot, count in frames.items()]
    meta = [
        _trim(slot.path(root, EPISODES), "episode_index", info.total_episodes, count)
        for slot, count in episodes.items()
    ]
    return any(data) or any(meta)


def _trim(path: Path, column: str, end: int, count: int) -> bool:
    """Keep the rows whose `column` is below `end`, which are `count`; each row group stays one."""
    file = open_parquet(path)
    if file.metadata.num_rows == count:
        return False
    commit(path, lambda target: _write_kept(path, file, target, column, end))
    return True


def _write_kept(path: Path, file: Any, target: Path, column: str, end: int) -> None:
    with pq.ParquetWriter(target, file.schema_arrow, compression="snappy") as writer:
        for group in range(file.metadata.num_row_groups):
            table = read_table(path, file, row_groups=[group])
            table = table.filter(pa.array(table[column].to_numpy() < end))
            if table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
