"""Finds the checkpoint that a command or a config names."""

from __future__ import annotations

from pathlib import Path

from rl_lab.core.errors import UsageError
from rl_lab.tracking.checkpoint import CheckpointStore, Entry, Loaded
from rl_lab.tracking.run_directory import RunDirectory

CYCLE = "cycle:"


def choose_checkpoint(run: RunDirectory, name: str) -> Loaded:
    """Load `latest` (the newest whole one), `best`, the one of `cycle:N` or the checkpoint at a path."""
    store = CheckpointStore(run.checkpoints)
    if name == "latest":
        return store.load_newest()
    if name == "best":
        best = store.best()
        if best is None:
            raise UsageError(f"checkpoint best: no checkpoint of {run.path} was evaluated (choices: latest, a path)")
        return store.load(best.path)
    if name.startswith(CYCLE):
        return store.load(_of_cycle(store, name).path)
    path = Path(name) if Path(name).is_dir() else run.checkpoints / name
    return store.load(path)


def _of_cycle(store: CheckpointStore, name: str) -> Entry:
    """Return the checkpoint at the end of a cycle, else the one within it: cycles are other programs' iterations."""
    entries, count = store.entries(), name.removeprefix(CYCLE)
    wanted = [int(count), int(count) - 1] if count.isdecimal() else []
    for cycles in wanted:
        for entry in reversed(entries):
            if entry.counters["cycles"] == cycles:
                return entry
    there = ", ".join(str(entry.counters["cycles"]) for entry in entries)
    raise UsageError(f"checkpoint {name}: there is none (cycles with a checkpoint: {there or 'none'}; or latest, best)")
