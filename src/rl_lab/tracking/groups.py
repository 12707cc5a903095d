"""Directories that hold several runs: sweeps and searches, known by their file, and launches of several seeds.

Their runs are listed with all others, under the name `<group>/trials/<trial>` or `<group>/seed_<number>`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

RUN_FILE = "manifest.json"  # what makes a directory a run
SWEEP_FILE = "sweep.json"  # what makes a directory a sweep or a search
TRIALS = "trials"  # where the runs of a sweep lie
_SEED = re.compile(r"seed_\d+")


def seed_name(seed: int) -> str:
    """Return the directory of one seed of a launch."""
    return f"seed_{seed}"


def is_run(path: Path) -> bool:
    """Return whether a directory is a run, or what is left of one that has lost its manifest."""
    if (path / RUN_FILE).is_file():
        return True
    return (path / "status").is_file() and any((path / name).is_file() for name in ("config.yaml", "metrics.jsonl"))


def run_directories(root: Path, known: dict[str, int]) -> dict[str, int]:
    """Return directories that may be runs, by their path below a root, and when their entries last changed, in ns.

    Those that are `known` runs, and have not changed since, are not looked into: they are no groups.
    """
    found = _folders(root)
    if (root / SWEEP_FILE).is_file():  # the root is a sweep itself
        found |= _below(TRIALS, _folders(root / TRIALS))
    for name in [name for name, stamp in found.items() if known.get(name) != stamp]:
        found |= _members(root, name)
    return found


def shown_name(path: Path) -> str:
    """Return the name of a run with that of its group."""
    if path.parent.name == TRIALS:
        return "/".join(path.parts[-3:])
    return "/".join(path.parts[-2:]) if _SEED.fullmatch(path.name) else path.name


def is_link(root: Path, path: Path) -> bool:
    """Return whether a run is reached through a link below the root: what it leads to is somebody else's."""
    return os.path.realpath(path) != os.path.join(os.path.realpath(root), os.path.relpath(path, root))


def names_of(run: str) -> list[str]:
    """Return what a run below a root can be called by: its path, its own name, and what it is inside of."""
    if "/" not in run:
        return [run]
    parts = run.split("/")
    return [*("/".join(parts[:count]) for count in range(1, len(parts) + 1)), parts[-1]]


def _members(root: Path, name: str) -> dict[str, int]:
    """Return the directories of a group that may be runs; a run, or any other directory, has none."""
    path = root / name
    if is_run(path):
        return {}
    if (path / SWEEP_FILE).is_file():
        return _below(f"{name}/{TRIALS}", _folders(path / TRIALS))
    return _below(name, _folders(path, _SEED))


def _below(folder: str, stamps: dict[str, int]) -> dict[str, int]:
    return {f"{folder}/{name}": stamp for name, stamp in stamps.items()}


def _folders(path: Path, pattern: re.Pattern[str] | None = None) -> dict[str, int]:
    """Return the directories in a directory and when their entries last changed, in nanoseconds."""
    found: dict[str, int] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    is_wanted = entry.name[0] != "." if pattern is None else pattern.fullmatch(entry.name) is not None
                    if is_wanted and entry.is_dir():
                        found[entry.name] = entry.stat().st_mtime_ns
                except OSError:  # it may go at any moment
                    continue
    except OSError:  # it is gone, or not ours to read
        return found
    return found
