"""What may go when the disk is full: of runs that nobody needs any more, everything but what they were and found.

A plan changes nothing. Carried out, it owns a run before it touches it, says so in the run's manifest first, and takes
whole directories away by renaming them: killed at any moment, the next plan finds what is left. Datasets never go.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl_lab.core.durable import reason
from rl_lab.core.errors import LabError, RunDirectoryError, UsageError
from rl_lab.tracking.atomic import LEFTOVER_PREFIX
from rl_lab.tracking.catalogue import RunInfo, choose_runs, list_runs, values_of
from rl_lab.tracking.dependencies import needed_runs
from rl_lab.tracking.groups import TRIALS, is_link
from rl_lab.tracking.labels import labels_lock, read_labels
from rl_lab.tracking.removal import removable, remove
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.run_record import last_activity
from rl_lab.tracking.run_size import freed_bytes
from rl_lab.tracking.sweep_plan import is_unfinished, sweep_of

Extent = Literal["buffers", "checkpoints"]
CLEANED = "cleaned"  # of a manifest: what went, and when
_DIRECTORIES = ("buffers", "checkpoints", "crash", "tb", "media")  # in the order in which they go
_DAY_S = 86_400


@dataclass(frozen=True)
class Doomed:
    """A run of which something can go."""

    run: RunInfo
    num_bytes: int


@dataclass(frozen=True)
class Plan:
    """What would go, and how many runs stay as they are, by reason."""

    extent: Extent
    doomed: list[Doomed]
    kept: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """Return what all of it takes up."""
        return sum(each.num_bytes for each in self.doomed)


@dataclass(frozen=True)
class Outcome:
    """What became of a run; `refusal` says why nothing went."""

    run: RunInfo
    num_bytes: int
    refusal: str | None = None


def plan_cleaning(
    root: Path | str,
    words: Sequence[str] = (),
    *,
    keep_best: int = 10,
    keep_recent: float = 30.0,
    metric: str = "eval/return",
    extent: Extent = "checkpoints",
    now: float | None = None,
) -> Plan:
    """Return what goes: all but the `keep_best` highest runs of every environment and those active in the last days.

    With `words`, only of runs that these name or filter.
    """
    if keep_best < 0 or keep_recent < 0:
        raise UsageError(f"--keep-best and --keep-recent must be >= 0, not {keep_best} and {keep_recent:g}")
    runs = list_runs(root)
    if not runs:
        return Plan(extent, [], {})
    recent = (time.time() if now is None else now) - keep_recent * _DAY_S
    best = _best(root, runs, metric, keep_best)
    chosen = {run.path for run in choose_runs(root, words)}
    busy = _busy(root, runs)
    reasons = {run.path: _reason(run, recent, best, busy) if run.path in chosen else "not chosen" for run in runs}
    links = [path for path, why in reasons.items() if why in (None, "recent") and is_link(Path(root), path)]
    reasons |= dict.fromkeys(links, "link")
    needed = needed_runs(root, runs, {path for path, why in reasons.items() if why is not None})
    doomed = []
    for run in runs:
        if reasons[run.path] is None and run.path in needed:
            reasons[run.path] = "needed by a kept run"
        if reasons[run.path] is None:
            num_bytes = freed_bytes(_going(run.path, extent))
            if num_bytes:
                doomed.append(Doomed(run, num_bytes))
            else:
                reasons[run.path] = "nothing to drop"
    return Plan(extent, doomed, Counter(why for why in reasons.values() if why is not None))


def carry_out(plan: Plan) -> Iterator[Outcome]:
    """Drop what a plan says, run by run; one that is in use by then, or cannot be written, is passed over."""
    for doomed in plan.doomed:
        try:
            yield Outcome(doomed.run, _clean(doomed.run, plan.extent))
        except LabError as error:
            yield Outcome(doomed.run, 0, str(error))
        except OSError as error:
            yield Outcome(doomed.run, 0, f"{doomed.run.path}: {reason(error)}")


def _clean(planned: RunInfo, extent: Extent) -> int:
    path = planned.path
    run = RunDirectory.open(path)
    going = freed_bytes(_going(path, extent))
    with run.lock(), labels_lock(run):  # also removes what a killed cleaning left
        _check_unchanged(run, planned)
        if extent == "buffers":
            _check_slim(path)  # before anything changes: else the run could not be resumed, for nothing
        before = run.read_manifest().get(CLEANED) or {}
        if before.get("extent") != "checkpoints":
            run.write_manifest({CLEANED: {"extent": extent, "time": time.time()}})
        for name in _DIRECTORIES if extent == "checkpoints" else _DIRECTORIES[:1]:
            for part in removable(path / name):
                remove(part)
        if extent == "buffers":
            _slim(path)
    return going


def _check_unchanged(run: RunDirectory, planned: RunInfo) -> None:
    """Raise when somebody pinned or continued the run after it was planned to go."""
    if read_labels(run).pinned:
        raise RunDirectoryError(f"{run.path} has been pinned meanwhile")
    if last_activity(run) > planned.active:
        raise RunDirectoryError(f"{run.path} has been active meanwhile")


def _check_slim(path: Path) -> None:
    from rl_lab.tracking.slim_checkpoint import check_droppable  # needs torch

    check_droppable(_full_checkpoints(path))


def _slim(path: Path) -> None:
    from rl_lab.tracking.slim_checkpoint import drop_buffers  # needs torch

    for checkpoint in _full_checkpoints(path):
        drop_buffers(checkpoint)


def _full_checkpoints(path: Path) -> list[Path]:
    return sorted({path / "checkpoints" / file.parts[0] for file in _segments(path)})


def _segments(path: Path) -> list[Path]:
    """Return the parts of buffers in a run's checkpoints, below `checkpoints`."""
    folder = path / "checkpoints"
    return [file.relative_to(folder) for file in folder.glob("[0-9]*/**/segment-*")]


def _going(path: Path, extent: Extent) -> list[Path]:
    """Return the files and directories of a run that go, and what a killed cleaning left."""
    leftovers = [*path.glob(f"{LEFTOVER_PREFIX}*"), *(path / "checkpoints").glob(f"{LEFTOVER_PREFIX}*")]
    if extent == "checkpoints":
        going = [part for name in _DIRECTORIES for part in removable(path / name)]
        return going + [left for left in leftovers if left.parent == path]
    return [*removable(path / "buffers"), *leftovers, *(path / "checkpoints" / file for file in _segments(path))]


def _best(root: Path | str, runs: Sequence[RunInfo], metric: str, count: int) -> set[Path]:
    """Return the runs whose highest value of the metric is among the highest of their environment."""
    found: dict[str, list[tuple[float, Path]]] = {}
    for run, (_, highest) in zip(runs, values_of(root, runs, [metric, f"{metric}:max"]), strict=True):
        if isinstance(highest, int | float) and not is_link(Path(root), run.path):
            found.setdefault(run.environment, []).append((float(highest), run.path))
    return {path for each in found.values() for _, path in sorted(each, reverse=True)[:count]}


def _busy(root: Path | str, runs: Sequence[RunInfo]) -> set[Path]:
    """Return the directories whose runs may go on: of launches that run, of sweeps until every trial has ended."""
    known = {run.path: (run.status, run.active) for run in runs}
    sweeps = {sweep for run in runs if (sweep := sweep_of(run.path)) is not None}
    open_sweeps = {sweep / TRIALS for sweep in sweeps if is_unfinished(sweep, known)}
    running = {run.path.parent for run in runs if run.status == "running"} - {Path(root).absolute()}
    return open_sweeps | running


def _reason(run: RunInfo, recent: float, best: set[Path], busy: set[Path]) -> str | None:
    """Return why a run stays as it is; `busy` are directories of sweeps and launches that are not at their end."""
    if run.pinned:
        return "pinned"
    if run.status in ("running", "damaged"):
        return run.status
    if run.path.parent in busy:  # it may go on, or another trial from its checkpoint
        return "of an unfinished sweep"
    if run.path in best:
        return "best"
    return "recent" if max(run.created, run.active) >= recent else None
