"""Finds the checkpoint that a command or a config names."""

from __future__ import annotations

from pathlib import Path

from rl_lab.core.errors import UsageError
from rl_lab.tracking.checkpoint import CheckpointStore, Loaded
from rl_lab.tracking.run_directory import RunDirectory


def choose_checkpoint(run: RunDirectory, name: str) -> Loaded:
    """Load `latest` (the newest whole one), `best` or the checkpoint at a path."""
    store = CheckpointStore(run.checkpoints)
    if name == "latest":
        return store.load_newest()
    if name == "best":
        best = store.best()
        if best is None:
            raise UsageError(f"checkpoint best: no checkpoint of {run.path} was evaluated (choices: latest, a path)")
        return store.load(best.path)
    path = Path(name) if Path(name).is_dir() else run.checkpoints / name
    return store.load(path)
