"""What the files of one run say, in one line: everything that the catalogue knows of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_lab.core.errors import RunDirectoryError
from rl_lab.tracking.flat_config import algorithm_of, environment_of, flatten, read_yaml
from rl_lab.tracking.labels import Labels, read_labels
from rl_lab.tracking.run_directory import RunDirectory

SCORE = "eval/return"
_UNFINISHED = ("running", "killed")  # metrics.json, if there is one, is of an earlier stop


@dataclass
class Progress:
    """Where a run is and its metrics, and how far metrics.jsonl was read for that."""

    offset: int = 0
    env_steps: int = 0
    updates: int = 0
    last: dict[str, float | None] = field(default_factory=dict)
    highest: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """One run of the catalogue."""

    path: Path
    id: str
    name: str
    seed: int | None
    status: str  # new, running, done, failed, stopped, killed or damaged
    created: float  # seconds since 1970
    active: float  # the last change of its metrics or status, seconds since 1970
    algorithm: str = ""
    environment: str = ""
    host: str = ""
    git_hash: str = ""
    config_hash: str = ""
    labels: Labels = field(default_factory=Labels)
    progress: Progress = field(default_factory=Progress)
    config: Mapping[str, Any] = field(default_factory=dict)  # by dotted key


def read_record(path: Path, before: Progress | None = None) -> RunRecord:
    """Read a run; one that cannot be read is `damaged`. With `before` only new rows of a living run are read."""
    try:
        run = RunDirectory.open(path)
        manifest, status = run.read_manifest(), run.read_status()
        summary = None if status in _UNFINISHED else run.read_summary()
    except RunDirectoryError:
        return RunRecord(path, "", path.name, None, "damaged", _changed(path), _changed(path))
    config = _config(run)
    tags = config.get("experiment.tags")
    return RunRecord(
        path=path,
        id=run.id,
        name=str(manifest.get("name", path.name)),
        seed=_whole(manifest.get("seed")),
        status=status,
        created=float(_number(manifest.get("created")) or 0.0),
        active=last_activity(run) or _changed(path),
        algorithm=algorithm_of(config),
        environment=environment_of(config),
        host=str(manifest.get("host", "")),
        git_hash=str(manifest.get("git_commit") or ""),
        config_hash=str(manifest.get("config_hash") or ""),
        labels=read_labels(run, tags if isinstance(tags, list) else ()),
        progress=_from_summary(summary) or _from_rows(run.metrics_file, before),
        config=config,
    )


def last_activity(run: RunDirectory) -> float:
    """Return when metrics or status last changed, seconds since 1970; 0 when there is neither."""
    return max(_changed(run.metrics_file), _changed(run.status_file))


def _config(run: RunDirectory) -> dict[str, Any]:
    """Return the flat config; none when it is missing or damaged, which is no reason to lose the run."""
    try:
        tree = read_yaml(run.read_config())
    except RunDirectoryError:
        return {}
    return {} if tree is None else flatten(tree)


def _from_summary(summary: Mapping[str, Any] | None) -> Progress | None:
    """Return what metrics.json of a run that ended says."""
    if summary is None or not all(isinstance(summary.get(key), dict) for key in ("position", "last", "highest")):
        return None
    position, progress = summary["position"], Progress()
    progress.env_steps, progress.updates = _whole(position.get("step")) or 0, _whole(position.get("updates")) or 0
    progress.last = {str(key): _number(value) for key, value in summary["last"].items()}
    progress.highest = {str(key): _number(value) for key, value in summary["highest"].items()}
    return progress


def _from_rows(file: Path, before: Progress | None) -> Progress:
    """Return the same from metrics.jsonl, from where it was read to before; half a line waits for its end."""
    progress = before if before is not None and before.offset <= _size(file) else Progress()
    try:
        with open(file, "rb") as rows:
            rows.seek(progress.offset)
            for line in rows:
                if not line.endswith(b"\n"):
                    break
                progress.offset += len(line)
                _add(progress, line)
    except OSError:
        return progress
    return progress


def _add(progress: Progress, line: bytes) -> None:
    try:
        row = json.loads(line)
    except ValueError:
        return
    if not isinstance(row, dict):
        return
    progress.env_steps = _whole(row.get("step")) or progress.env_steps
    progress.updates = _whole(row.get("updates")) or progress.updates
    for key, raw in row.items():
        if "/" in key:
            value = progress.last[key] = _number(raw)
            old = progress.highest.get(key)
            if value is not None and (old is None or value > old):
                progress.highest[key] = value


def _number(value: Any) -> float | None:
    """Return a finite number: SQL knows no NaN."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
