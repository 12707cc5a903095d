"""What `lab train` and `lab resume` share: a run that owns its directory, records how it went and prints its result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from rl_lab.config.build import Parts, assemble, build
from rl_lab.config.memory import check_room
from rl_lab.config.record import record_start
from rl_lab.config.resume import Start, check_start, config_files, find_start, has_checkpoints, load_start, restore
from rl_lab.config.targets import Targets
from rl_lab.config.units import ratio_notes
from rl_lab.config.validate import read_phases
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking.run_directory import RunDirectory, Status


@dataclass(frozen=True)
class Job:
    """A run that is ready to start."""

    parts: Parts
    run: RunDirectory
    start: Start | None  # None: from the beginning


def new_job(
    composed: DictConfig,
    targets: Targets,
    run_dir: str | Path | None,
    start: Start | None = None,
    *,
    quiet: bool = False,
) -> Job:
    """Return a job in a directory of its own; it starts from `start` or from `training.resume_path`."""
    parts = assemble(composed, targets)
    experiment, training = parts.config["experiment"], parts.config["training"]
    notes = _notes(parts, Path(run_dir or experiment["root"]))
    if start is None and training["resume_path"] is not None:
        start = find_start(training["resume_path"], training["resume_mode"], training["resume_parts"])
    if start is not None:
        start = check_start(start, parts)
    _tell(notes, quiet)
    run = RunDirectory.create(
        experiment["root"], experiment["name"], experiment["seed"], run_dir, files=config_files(parts)
    )
    return Job(parts, run, start)


def continued_job(run: RunDirectory, composed: DictConfig, targets: Targets, *, quiet: bool = False) -> Job:
    """Return a job that goes on exactly where `run` stopped; one that died before its first checkpoint begins anew."""
    parts = assemble(composed, targets)
    notes = _notes(parts, run.path, run.path)
    start = check_start(Start(run, "exact"), parts) if has_checkpoints(run) else None
    _tell(notes, quiet)
    return Job(parts, run, start)


def _notes(parts: Parts, root: Path, run: Path | None = None) -> list[str]:
    """Return what a person should know before a run begins; buffers that cannot fit are refused."""
    notes, spec = check_room(parts.context.buffers, parts.config["buffers"], root, run), parts.env.spec
    phases = read_phases(parts.config, parts.targets)
    notes += ratio_notes(phases, parts.context.buffers, spec.action_repeat)
    if not spec.exact_resume:
        notes += [f"environment {spec.id!r} cannot be restored exactly: this run can be warm-started but not resumed"]
    return notes


def _tell(notes: list[str], quiet: bool) -> None:
    for note in notes if not quiet else ():
        typer.echo(note)


@contextmanager
def opened(job: Job, *, quiet: bool = False) -> Iterator[Orchestrator]:
    """Own the run's directory and yield the orchestrator, restored where the job says; `status` stays true."""
    with job.run.lock():
        start = job.start
        if start is None and has_checkpoints(job.run):  # its last owner saved one after the job was made
            start = check_start(Start(job.run, "exact"), job.parts)
        loaded = None if start is None else load_start(start)  # a refusal leaves the run as it was
        with _recorded(job.run):
            record_start(job.run, job.parts, start)
            orchestrator = build(job.parts, job.run, quiet=quiet)
            try:
                if start is not None and loaded is not None:
                    restore(orchestrator, job.run, start, loaded)
                yield orchestrator
            finally:
                orchestrator.collector.env.close()
                orchestrator.evaluator.env.close()


@contextmanager
def _recorded(run: RunDirectory) -> Iterator[None]:
    """Keep the run's `status` file true, however the block ends."""
    run.set_status("running")
    status: Status = "failed"
    try:
        yield
        status = "done"
    except (Interrupted, KeyboardInterrupt):
        status = "stopped"
        raise
    finally:
        run.set_status(status)


def result_of(run: RunDirectory) -> dict[str, Any]:
    """Return where the run is, how it stands and its final metrics."""
    return {"run": str(run.path), "status": run.read_status(), **(run.read_summary() or {})}


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
            table.add_row(name, f"{last[name]:.6g}", f"{highest.get(name, math.nan):.6g}")
        console.print(table)
        console.print(f"run: {result['run']} ({result['status']})", highlight=False)
