"""What `lab train` and `lab resume` share: a run that owns its directory, records how it went and prints its result."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import typer
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from rl_lab.config.build import Parts, assemble, build
from rl_lab.config.fitting import FITTED, Fitted, as_fitted_before, describe, fit_buffers
from rl_lab.config.memory import check_room
from rl_lab.config.parallel import settle_devices
from rl_lab.config.record import record_start
from rl_lab.config.remote import reject_taken_port
from rl_lab.config.resume import (
    Start,
    check_start,
    config_files,
    find_start,
    has_checkpoints,
    load_fitting,
    load_start,
    reject_cleaned,
    reject_lost,
    restore,
    restores_exactly,
)
from rl_lab.config.sinks import reject_missing_packages
from rl_lab.config.targets import Targets
from rl_lab.config.units import ratio_notes
from rl_lab.config.validate import read_phases
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.ops.intervals import with_interval
from rl_lab.orchestration.attendant import WayBack
from rl_lab.orchestration.monitor import RollBack
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking.checkpoint import Loaded
from rl_lab.tracking.run_directory import RunDirectory, Status


@dataclass
class Job:
    """A run that is ready to start; whoever makes it anew lets go of its parts first."""

    parts: Parts
    run: RunDirectory
    start: Start | None  # None: from the beginning
    loaded: Loaded | None = None  # what it starts from, where that had to be read to see whether it fits
    way_back: WayBack | None = None  # why it goes on from an earlier checkpoint of its own
    fitted: Fitted = field(default_factory=dict)  # capacities of buffers that were lowered


def new_job(
    composed: DictConfig,
    targets: Targets,
    run_dir: str | Path | None,
    *,
    quiet: bool = False,
    ranks: Ranks = ALONE,
) -> Job:
    """Return a job in a directory of its own; it starts from `training.resume_path`, if any."""
    parts = assemble(settle_devices(composed, ranks), targets, ranks=ranks)
    root = Path(run_dir or parts.config["experiment"]["root"])
    parts, fitted = fit_buffers(parts, root, ranks)
    experiment = parts.config["experiment"]
    notes = [*describe(fitted), *_notes(parts, root)]
    start = _wanted_start(parts)
    start = None if start is None else check_start(start, parts)
    loaded = None if start is None else load_fitting(start, parts)  # a refusal leaves no directory behind
    reject_missing_packages(parts.config)
    _tell(notes, quiet)
    reject_taken_port(parts.config)
    path = ""
    if ranks.is_first:
        run = RunDirectory.create(
            experiment["root"], experiment["name"], experiment["seed"], run_dir, files=config_files(parts)
        )
        path = str(run.path)
    return Job(parts, RunDirectory.open(ranks.first(path)), start, loaded, fitted=fitted)


def continued_job(
    run: RunDirectory, composed: DictConfig, targets: Targets, *, quiet: bool = False, ranks: Ranks = ALONE
) -> Job:
    """Return a job that goes on exactly where `run` stopped; one that died before its first checkpoint begins anew.

    What such a run began with, if it did with another's checkpoint, it begins with again.
    """
    reject_cleaned(run)
    parts = assemble(settle_devices(as_fitted_before(composed, run), ranks), targets, ranks=ranks)
    notes = _notes(parts, run.path, run.path)
    if has_checkpoints(run):
        start: Start | None = Start(run, "exact")
    else:
        start = _wanted_start(parts)
        reject_lost(run, start)
    start = None if start is None else check_start(start, parts)
    reject_missing_packages(parts.config)
    _tell(notes, quiet)
    return Job(parts, run, start)


def _wanted_start(parts: Parts) -> Start | None:
    """Return what the config says that the run starts from."""
    training = parts.config["training"]
    if training["resume_path"] is None:
        return None
    return find_start(training["resume_path"], training["resume_mode"], training["resume_parts"])


def _notes(parts: Parts, root: Path, run: Path | None = None) -> list[str]:
    """Return what a person should know before a run begins; buffers that cannot fit are refused."""
    notes, spec = check_room(parts.context.buffers, parts.config["buffers"], root, run), parts.env.spec
    phases = read_phases(parts.config, parts.targets)
    notes += ratio_notes(phases, parts.context.buffers, spec.action_repeat)
    if not restores_exactly(parts):
        notes += [f"environment {spec.id!r} cannot be restored exactly: this run can be warm-started but not resumed"]
    return notes + parts.env.notes()


def _tell(notes: list[str], quiet: bool) -> None:
    for note in notes if not quiet else ():
        typer.echo(note)


def run_to_end(job: Job, *, quiet: bool = False, until: int | None = None) -> None:
    """Own the run's directory and run the job, or until it is to pause; `status` stays true.

    Where an alert asks for it, all is made anew from an earlier checkpoint, as a resume does it.
    """
    with job.run.lock() if job.parts.context.ranks.is_first else nullcontext():
        while (way := _run_or_go_back(job, until, quiet=quiet)) is not None:
            composed, targets, ranks = let_go(job)
            again = continued_job(job.run, composed, targets, quiet=True, ranks=ranks)
            assert again.start is not None, "it goes back to a checkpoint"
            job.parts, job.start = again.parts, replace(again.start, checkpoint=way.checkpoint)
            job.way_back, job.fitted = way, again.fitted


def let_go(job: Job) -> tuple[DictConfig, Targets, Ranks]:
    """Drop the parts of a job, so that there is room to make them anew from what is returned."""
    parts = job.parts
    made_from = parts.composed, parts.targets, parts.context.ranks
    del job.parts, parts
    gc.collect()  # a run refers to itself in circles
    torch.cuda.empty_cache()  # nothing, where no GPU is used
    return made_from


def _run_or_go_back(job: Job, until: int | None, *, quiet: bool) -> WayBack | None:
    """Run to the end, or until an alert asks for an earlier checkpoint."""
    try:
        with _opened(job, quiet=quiet) as orchestrator:
            orchestrator.scheduler.pause_at = until
            orchestrator.run()
    except RollBack as asked:
        return asked.way
    return None


@contextmanager
def opened(job: Job, *, quiet: bool = False) -> Iterator[Orchestrator]:
    """Own the run's directory and yield the orchestrator, restored where the job says; `status` stays true."""
    with (
        job.run.lock() if job.parts.context.ranks.is_first else nullcontext(),
        _opened(job, quiet=quiet) as orchestrator,
    ):
        yield orchestrator


@contextmanager
def _opened(job: Job, *, quiet: bool) -> Iterator[Orchestrator]:
    """Yield the orchestrator of a run whose directory is owned, restored where the job says."""
    ranks, start = job.parts.context.ranks, job.start
    is_begun = start is not None and start.source.path == job.run.path
    if ranks.first(not is_begun and has_checkpoints(job.run)):  # its last owner saved one after the job was made
        start, job.loaded = check_start(Start(job.run, "exact"), job.parts), None
    loaded, job.loaded = job.loaded, None
    if start is not None and loaded is None:
        loaded = load_start(start, ranks)  # a refusal leaves the run as it was
    with _recorded(job.run) if ranks.is_first else nullcontext():
        if ranks.is_first:
            record_start(job.run, job.parts, start)
        orchestrator = build(job.parts, job.run, quiet=quiet)
        if job.fitted and ranks.is_first:
            job.run.write_manifest({FITTED: job.fitted})
            orchestrator.tracker.event(FITTED, message="; ".join(describe(job.fitted)))
        try:
            if start is not None and loaded is not None:
                restore(orchestrator, job.run, start, loaded)
            if job.way_back is not None:
                orchestrator.attendant.begin_again(job.way_back)
            yield orchestrator
        finally:
            orchestrator.collector.close()
            orchestrator.evaluator.env.close()
            if job.parts.operator is not None:
                job.parts.operator.close()
            if orchestrator.films is not None:
                orchestrator.films.close()


@contextmanager
def _recorded(run: RunDirectory) -> Iterator[None]:
    """Keep the run's `status` file true, however the block ends."""
    run.set_status("running")
    status: Status = "failed"
    try:
        yield
        status = "done"
    except RollBack:  # it goes on
        status = "running"
        raise
    except (Interrupted, KeyboardInterrupt):
        status = "stopped"
        raise
    finally:
        run.set_status(status)


def result_of(run: RunDirectory) -> dict[str, Any]:
    """Return where the run is, how it stands and its final metrics, with the interval of a share of successes."""
    summary = run.read_summary() or {}
    if "last" in summary:
        summary["last"] = with_interval(summary["last"], "eval/info/is_success", "eval/episodes")
    return {"run": str(run.path), "status": run.read_status(), **summary}


def print_results(results: list[dict[str, Any]], as_json: bool) -> None:
    """Print the results as tables or as JSON: an object for one run, a list for several."""
    if as_json:
        typer.echo(json.dumps(results if len(results) > 1 else results[0], indent=1))
        return
    console = Console(soft_wrap=True)
    for result in results:
        last, highest = result.get("last", {}), result.get("highest", {})
        table = Table("metric", "last", "highest", title="result")
        for name in last:
            if name.startswith("train/") and "/seed_" in name:  # of single agents: the means are enough here
                continue
            table.add_row(name, f"{last[name]:.6g}", f"{highest[name]:.6g}" if name in highest else "")
        console.print(table)
        console.print(f"run: {result['run']} ({result['status']})", highlight=False)
