"""What the files of a sweep or search tell of its runs: which settings they share, and whether it may go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_lab.tracking.groups import SWEEP_FILE, TRIALS
from rl_lab.tracking.lock import is_locked

_SEED_KEY = "experiment.seed"
_SEED_ENDING = re.compile(r"_s\d+$")  # of a search's runs
_ENDED = ("done", "failed")


def sweep_of(run: Path) -> Path | None:
    """Return the directory of the sweep or search that a run belongs to."""
    sweep = run.parent.parent
    return sweep if run.parent.name == TRIALS and (sweep / SWEEP_FILE).is_file() else None


def settings_of(runs: Iterable[Path]) -> dict[Path, str]:
    """Return `<sweep>/<trial>` of the runs of sweeps; those that differ in their seed alone have the first's."""
    plans: dict[Path, dict[str, str]] = {}
    found: dict[Path, str] = {}
    for run in runs:
        if (sweep := sweep_of(run)) is not None:
            if sweep not in plans:
                plans[sweep] = _firsts(sweep)
            found[run] = f"{sweep.name}/{plans[sweep].get(run.name) or _SEED_ENDING.sub('', run.name)}"
    return found


def is_unfinished(sweep: Path, runs: Mapping[Path, tuple[str, float]]) -> bool:
    """Return whether a process looks after a sweep, or the next one would go on with it.

    `runs` are those of the root: status and time of the last activity.
    """
    if any(is_locked(claim) for claim in sweep.glob("claims/*")):
        return True
    names = [str(row["name"]) for row in _trials(sweep)]
    if not names:
        return _is_search_open(sweep, runs)
    return any(not _is_ended(sweep, name, runs.get(sweep / TRIALS / name, ("", 0.0))[0]) for name in names)


def _is_ended(sweep: Path, name: str, status: str) -> bool:
    return status in _ENDED or (sweep / "logs" / f"{name}.failed").is_file()


def _is_search_open(sweep: Path, runs: Mapping[Path, tuple[str, float]]) -> bool:
    """Return whether a search has trials that have not ended; pruned ones have, though their runs were stopped."""
    mine = {path: run for path, run in runs.items() if path.parent == sweep / TRIALS}
    left = [active for path, (status, active) in mine.items() if not _is_ended(sweep, path.name, status)]
    report = sweep / "report.json"
    states = [row.get("state") for row in _rows(report)]
    if not states:
        return bool(left)
    return "running" in states or any(active > report.stat().st_mtime for active in left)


def _firsts(sweep: Path) -> dict[str, str]:
    """Return for each planned trial the first one of the same settings."""
    firsts: dict[str, str] = {}
    by_name: dict[str, str] = {}
    for row in _trials(sweep):
        values = {key: value for key, value in (row.get("values") or {}).items() if key != _SEED_KEY}
        by_name[row["name"]] = firsts.setdefault(json.dumps(values, sort_keys=True), row["name"])
    return by_name


def _trials(sweep: Path) -> list[dict[str, Any]]:
    return [row for row in _rows(sweep / SWEEP_FILE) if "name" in row]


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the trials that a file lists; one that cannot be read lists none."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return []
    rows = content.get("trials") if isinstance(content, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
