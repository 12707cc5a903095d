"""Finds out which format a dataset has, and opens it for reading or writing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from rl_lab.buffers.datasets.csv_table import FIELDS, CsvReader, CsvWriter
from rl_lab.buffers.datasets.format import DatasetError, DoneMeans, Episode, EpisodeReader, EpisodeWriter
from rl_lab.buffers.datasets.lab import HEADER, LabReader, LabWriter
from rl_lab.buffers.datasets.packaged import PREFIX, open_packaged
from rl_lab.core.errors import ConfigError, unknown_name

Format = Literal["auto", "lab", "lerobot", "minari", "csv"]
MARKS = {"lab": (HEADER,), "lerobot": ("meta/info.json",), "minari": ("data/metadata.json", "metadata.json")}
MARKS |= {"csv": (FIELDS,)}


def detect_format(path: Path) -> str:
    """Return the format of the dataset in a directory. Raises DatasetError when there is none."""
    if not path.exists():
        raise DatasetError(f"{path} does not exist")
    if not path.is_dir():
        raise DatasetError(f"{path} is a file; a dataset is a directory")
    for name, marks in MARKS.items():
        if any((path / mark).exists() for mark in marks):
            return name
    wanted = ", ".join(f"{marks[0]} ({name})" for name, marks in MARKS.items())
    raise DatasetError(f"{path} holds no dataset: none of {wanted} is there")


def open_dataset(
    path: str | Path, format: Format = "auto", *, done_means: DoneMeans = "terminated", is_checked: bool = True
) -> EpisodeReader:
    """Open a dataset and check its index and, unless `is_checked` is false, that all files are there and whole.

    Its episodes are read when they are asked for.
    """
    if str(path).startswith(PREFIX):
        return open_packaged(str(path))
    root = Path(path)
    kind = detect_format(root) if format == "auto" else format
    if kind == "lab":
        return LabReader(root, is_checked=is_checked)
    if kind == "lerobot":
        from rl_lab.buffers.datasets.lerobot_reader import LeRobotReader

        return LeRobotReader(root, done_means=done_means, is_checked=is_checked)
    if kind == "minari":
        from rl_lab.buffers.datasets.minari import MinariReader

        return MinariReader(root)
    if kind == "csv":
        return CsvReader(root)
    raise ConfigError(unknown_name("dataset format", format, ["auto", *MARKS]))


def read_episodes(
    path: str | Path, format: Format = "auto", *, episodes: Sequence[int] | None = None
) -> Iterator[Episode]:
    """Yield the episodes of a dataset one by one."""
    return open_dataset(path, format).episodes(episodes)


def open_writer(path: str | Path, format: Literal["lab", "lerobot", "csv"] = "lab", **options: Any) -> EpisodeWriter:
    """Open a dataset for adding episodes, or begin one; the options are those of the format's writer."""
    if format == "lab":
        return LabWriter(path, **options)
    if format == "lerobot":
        from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter

        return LeRobotWriter(path, **options)
    if format == "csv":
        return CsvWriter(path, **options)
    raise ConfigError(unknown_name("dataset format to write", format, ["lab", "lerobot", "csv"]))
