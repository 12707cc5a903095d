"""Statistics of any dataset, computed from its numbers; those that LeRobot keeps are compared and put right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rl_lab.buffers.datasets.files import commit, lock_for_writing, read_json
from rl_lab.buffers.datasets.format import Array, DatasetError, Episode, EpisodeReader
from rl_lab.buffers.datasets.lerobot_format import AUTOMATIC, STATS, Feature, Info, read_info
from rl_lab.buffers.datasets.lerobot_stats import Stats, episode_stats, join_stats

TOLERANCE = 1e-6  # relative to the largest number of a feature
VIDEO_TOLERANCE = 0.05  # of pictures, which are 0 to 1: statistics were taken before they were encoded


def compute(reader: EpisodeReader) -> list[dict[str, Stats]]:
    """Return the statistics of each episode, by LeRobot's names where the files are LeRobot's; reads everything."""
    return [_of_episode(reader, reader.read(number)) for number in range(len(reader.lengths))]


def _of_episode(reader: EpisodeReader, episode: Episode) -> dict[str, Stats]:
    if reader.format != "lerobot":
        return {name: episode_stats(array, _feature(array)) for name, array in episode.arrays().items()}
    from rl_lab.buffers.datasets.lerobot_episode import columns_of

    features, columns = read_info(reader.path).features, columns_of(episode)
    return {name: episode_stats(columns[name], f) for name, f in features.items() if name in columns}


def _feature(array: Array) -> Feature:
    from rl_lab.buffers.datasets.lerobot_episode import feature_of

    return feature_of(array)


def verify_lerobot(path: Path, computed: list[dict[str, Stats]]) -> list[str]:
    """Return what is wrong with the statistics in a LeRobot dataset's files, a line each; the numbers are right."""
    from rl_lab.buffers.datasets.lerobot_meta import read_stats

    info = read_info(path)
    lines = []
    for number, stored in enumerate(read_stats(path, info)):
        lines += [f"episode {number}: {text}" for text in _differences(info, computed[number], stored)]
    whole = {
        name: {key: np.array(value) for key, value in part.items()} for name, part in read_json(path / STATS).items()
    }
    return lines + [f"{STATS}: {text}" for text in _differences(info, join_stats(computed), whole)]


def _differences(info: Info, right: Mapping[str, Stats], stored: Mapping[str, Stats]) -> list[str]:
    found = []
    for name, stats in right.items():
        slack = VIDEO_TOLERANCE if info.features[name].dtype == "video" else TOLERANCE
        scale = max(1.0, float(np.abs(stats["max"].astype(np.float64)).max()))
        for key, value in stats.items():
            if key not in stored.get(name, {}):
                found.append(f"{name} has no {key}")
            elif not _is_near(stored[name][key], value, slack * scale):
                found.append(f"{key} of {name} is {_short(stored[name][key])} instead of {_short(value)}")
    return found


def _is_near(stored: Array, right: Array, slack: float) -> bool:
    """Return whether no number is further off than that; one that is none is right only in the place of another."""
    pair = stored.astype(np.float64), right.astype(np.float64)
    return np.allclose(*pair, rtol=0.0, atol=slack, equal_nan=True)


def repair_lerobot(path: Path, computed: list[dict[str, Stats]]) -> None:
    """Write right statistics into a LeRobot dataset, file by file; those of automatic features stay."""
    from rl_lab.buffers.datasets.lerobot_columns import pa, pq, read_table
    from rl_lab.buffers.datasets.lerobot_meta import episode_tables, read_stats, write_stats

    with lock_for_writing(path):
        info = read_info(path)
        if info.total_episodes != len(computed):
            raise DatasetError(f"{path} has {info.total_episodes} episodes, statistics are of {len(computed)}")
        for file_path, file in episode_tables(path):
            table = read_table(file_path, file)
            numbers = table.column("episode_index").to_pylist()
            for name in [name for name in table.column_names if name.startswith("stats/")]:
                feature, _, statistic = name.removeprefix("stats/").rpartition("/")
                if feature in AUTOMATIC or feature not in computed[0]:
                    continue
                values = [computed[n][feature][statistic].tolist() if n < len(computed) else None for n in numbers]
                field = table.schema.field(name)
                table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
            _commit_table(file_path, table, pq)
        write_stats(path, join_stats(read_stats(path, info)))


def _commit_table(path: Path, table: object, pq: object) -> None:
    commit(path, lambda target: pq.write_table(table, target, compression="snappy"))  # type: ignore[attr-defined]


def _short(value: Array) -> str:
    numbers = ", ".join(f"{number:.4g}" for number in value.astype(np.float64).ravel()[:3])
    return f"[{numbers}{', ...' if value.size > 3 else ''}]"
