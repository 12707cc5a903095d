"""The runs under a root, read from their files alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_lab.core.errors import RunDirectoryError, unknown_name
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.jsonl import last_row, read_rows
from rl_lab.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class RunInfo:
    """One line of `lab runs list`."""

    path: Path
    id: str
    name: str
    seed: int | None
    status: str  # new, running, done, failed, stopped, killed or damaged
    created: float  # seconds since 1970
    env_steps: int
    updates: int
    score: float | None  # evaluation return of the best checkpoint

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {**asdict(self), "path": str(self.path)}


def list_runs(root: Path | str) -> list[RunInfo]:
    """Return the runs directly under `root`, newest first; other directories are passed over."""
    root = Path(root)
    if not root.is_dir():
        return []
    runs = [describe(path) for path in root.iterdir() if (path / "manifest.json").is_file()]
    return sorted(runs, key=lambda run: (run.created, run.path.name), reverse=True)


def find_run(root: Path | str, which: str | None = None) -> RunDirectory:
    """Return a run by path, directory name, id or experiment name (the newest of it); without `which` the newest."""
    runs = [run for run in list_runs(root) if run.status != "damaged"]
    if which is None:
        if not runs:
            raise RunDirectoryError(f"no runs in {Path(root).absolute()}; `lab train` makes one")
        return RunDirectory.open(runs[0].path)
    matches = [run for run in runs if which in (run.path.name, run.id, run.name)]
    if matches:
        return RunDirectory.open(matches[0].path)
    if Path(which).exists() or "/" in which:
        return RunDirectory.open(which)
    raise RunDirectoryError(unknown_name(f"run in {Path(root).absolute()}:", which, (run.path.name for run in runs)))


def describe(path: Path | str) -> RunInfo:
    """Return the line of one run; a run that cannot be read is listed as damaged."""
    path = Path(path).absolute()
    try:
        run = RunDirectory.open(path)
        manifest, status = run.read_manifest(), run.read_status()
    except RunDirectoryError:
        return RunInfo(path, "", path.name, None, "damaged", path.stat().st_mtime, 0, 0, None)
    row, best = last_row(run.metrics_file) or {}, CheckpointStore(run.checkpoints).best()
    counters = {"env_steps": row.get("step", 0), "updates": row.get("updates", 0)}
    return RunInfo(
        path=path,
        id=run.id,
        name=manifest.get("name", path.name),
        seed=manifest.get("seed"),
        status=status,
        created=manifest.get("created", 0.0),
        **counters,
        score=best.score if best else None,
    )


def show_run(path: Path | str) -> dict[str, Any]:
    """Return all that `lab runs show` prints: the line, manifest, config, checkpoints, last metrics and events."""
    run = RunDirectory.open(path)
    last: dict[str, Any] = {}
    for row in read_rows(run.metrics_file):
        last |= row
    return {
        "run": describe(run.path).to_json(),
        "manifest": run.read_manifest(),
        "config": run.read_config() if run.config_file.is_file() else None,
        "checkpoints": [
            {**asdict(entry), "path": str(entry.path)} for entry in CheckpointStore(run.checkpoints).entries()
        ],
        "metrics": last,
        "events": list(read_rows(run.events_file)),
    }
