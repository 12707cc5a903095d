"""What of a directory may go: everything but datasets. People made those, and nothing can make them again."""

from __future__ import annotations

import os
from pathlib import Path

from rl_lab.tracking.atomic import remove_directory

DATASET_MARKS = (  # of the lab, LeRobot, Minari and tables
    *("dataset.json", "meta/info.json", "data/metadata.json", "metadata.json", "fields.json"),
)


def removable(path: Path) -> list[Path]:
    """Return the largest parts of a file or directory in which there is no dataset; links are not followed."""
    if not holds_dataset(path):
        return [path] if os.path.lexists(path) else []
    if path.is_symlink() or _is_dataset(path):
        return []
    return [part for entry in sorted(path.iterdir()) for part in removable(entry)]


def holds_dataset(path: Path) -> bool:
    """Return whether a directory, or what a link leads to, is a dataset or has one inside."""
    folders = (Path(folder, name) for folder, names, _ in os.walk(path) for name in ("", *names))
    return any(map(_is_dataset, folders))  # by names: links are not walked into


def remove(path: Path) -> None:
    """Delete what `removable` named; of a link, the link."""
    if path.is_dir() and not path.is_symlink():
        remove_directory(path)
    else:
        path.unlink(missing_ok=True)


def _is_dataset(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in DATASET_MARKS)
