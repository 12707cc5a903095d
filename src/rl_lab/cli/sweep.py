"""`lab sweep FILE.yaml`: many runs from one file; the same command goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import DEFAULT_ROOT, ConfigDir, Debug, Json, Plugin, Root
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from rl_lab.config.targets import Targets
    from rl_lab.tuning.crew import Crew
    from rl_lab.tuning.sweep import Draft
    from rl_lab.tuning.sweep_directory import SweepDirectory, Trial
    from rl_lab.tuning.sweep_file import SweepFile

METRIC = "eval/return"  # what the table shows unless it is told otherwise
Place = Annotated[
    str | None, typer.Option("--dir", help="Where the trials go (ROOT/name of the file).", show_default=False)
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Trials at once (parallel_jobs of the file).", show_default=False)
]
Retries = Annotated[int, typer.Option("--retries", min=0, help="How often a failed trial goes on from its checkpoint.")]
On = Annotated[str, typer.Option("--on", help="local (this machine) or ray (a cluster).")]
Address = Annotated[
    str | None, typer.Option("--address", help="Of a Ray cluster; none: one of this machine alone.", show_default=False)
]
FileAndOverrides = Annotated[
    list[str],
    typer.Argument(metavar="FILE [OVERRIDES]...", help="The sweep's YAML, then key=value.", show_default=False),
]


def sweep(
    arguments: FileAndOverrides,
    place: Place = None,
    jobs: Jobs = None,
    on: On = "local",
    address: Address = None,
    retries: Retries = 0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try those again that failed before.")] = False,
    metric: Annotated[
        str | None, typer.Option("--metric", help=f"What the table shows ({METRIC}).", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the trials.")] = False,
    root: Root = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run all trials of a sweep, or those that are not done yet."""
    with Reported(debug):
        from rl_lab.tracking.terminal import make_console
        from rl_lab.tuning.sweep import Draft, run_sweep, write
        from rl_lab.tuning.sweep_file import read_sweep
        from rl_lab.tuning.table import SweepTable

        check_place(on, address)
        file, overrides = read_sweep(arguments[0]), arguments[1:]
        tell_notes(file)
        targets, directory = targets_of(plugin or []), directory_of(place, root, file)
        if dry_run:
            drafted = Draft({}, checked_trials(file, targets, config_dir, overrides))
        else:
            drafted = _drafted(file, directory, targets, config_dir, overrides)
        trials = drafted.trials
        check_metric(directory, trials, metric)
        table = SweepTable(directory, lambda: trials, metric or METRIC, None if as_json else make_console())
        stop_signal = None
        if not dry_run:
            with open_crew(file, directory, jobs, plugin or [], on, address) as crew, table.shown():
                trials = write(directory, drafted)  # once there is somewhere to run them
                if not as_json:
                    typer.echo(f"sweep: {directory.path}: {len(trials)} trials, {len(crew.slots)} at once")
                run_sweep(crew, trials, retries=retries, retry_failed=retry_failed, tell=table.tell, show=table.show)
                stop_signal = crew.stop_signal
        table.print_all()
        if as_json:
            typer.echo(json.dumps({"sweep": str(directory.path), "trials": table.rows()}, indent=1))
        if not dry_run:
            _leave(directory, trials, stop_signal)
            check_metric(directory, trials, metric)


def tell_notes(file: SweepFile) -> None:
    """Say what a person should know of the sweep's file."""
    for note in file.notes:
        typer.echo(f"note: {note}", err=True)


def targets_of(plugins: list[str]) -> Targets:
    """Return what a config may name."""
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.targets import Targets

    return Targets(AllowList(load_plugins(plugins)))


def directory_of(place: str | None, root: str | None, file: SweepFile) -> SweepDirectory:
    """Return the directory of a sweep: the same one for the same file, so that the same command goes on with it."""
    from rl_lab.tuning.sweep_directory import SweepDirectory

    return SweepDirectory(place or Path(root or DEFAULT_ROOT) / file.name)


def check_place(on: str, address: str | None) -> None:
    """Refuse a place that is unknown, before anything is written."""
    from rl_lab.core.errors import UsageError, unknown_name

    if on not in ("local", "ray"):
        raise UsageError(unknown_name("--on", on, ("local", "ray")))
    if on == "local" and address is not None:
        raise UsageError(f"--address {address} goes with --on ray")


@contextmanager
def open_crew(
    file: SweepFile, directory: SweepDirectory, jobs: int | None, plugins: list[str], on: str, address: str | None
) -> Iterator[Crew]:
    """Yield those who run the trials: on this machine, or wherever a Ray cluster has room."""
    from rl_lab.tuning import trial_process
    from rl_lab.tuning.crew import Crew
    from rl_lab.tuning.slots import list_gpus, make_slots, num_cores

    options = file.options
    jobs, cpus, gpus = jobs or options["parallel_jobs"], options["cpus_per_trial"], options["gpus_per_trial"]
    if on == "ray":
        from rl_lab.tuning.ray_cluster import ray_cluster

        with ray_cluster(address, cpus, gpus or 0) as cluster:
            yield Crew(directory, cluster.slots(jobs), cluster, plugins)
        return
    slots = make_slots(jobs, gpus, list_gpus(), num_cores() // cpus or 1)
    yield Crew(directory, slots, trial_process.start_process, plugins)


def checked_trials(file: SweepFile, targets: Targets, config_dir: str | None, overrides: list[str]) -> list[Trial]:
    """Return the trials that a sweep's file asks for, without writing anything; all of them could run."""
    from rl_lab.tuning.sweep import plan_sweep
    from rl_lab.tuning.trial_configs import open_configs

    with open_configs(file, targets, config_dir, overrides) as configs:
        trials = plan_sweep(file, configs)
        for trial in trials:
            configs.text(trial.values)  # checks it
        return trials


def _drafted(
    file: SweepFile, directory: SweepDirectory, targets: Targets, config_dir: str | None, overrides: list[str]
) -> Draft:
    from rl_lab.tuning.sweep import draft
    from rl_lab.tuning.trial_configs import open_configs

    with open_configs(file, targets, config_dir, overrides) as configs:
        return draft(directory, file, overrides, configs)


def check_metric(directory: SweepDirectory, trials: list[Trial], metric: str | None) -> None:
    """Refuse a metric that somebody asked for and no trial has, once one is done; the nearest one is offered."""
    from rl_lab.core.errors import UsageError, unknown_name

    done = [trial for trial in trials if directory.state(trial) == "done"]
    if metric is None or not done:
        return
    known = set[str]().union(*(directory.metrics(trial) for trial in done))
    if metric not in known:
        same = [name for name in known if name.startswith(metric.partition("/")[0] + "/")]
        raise UsageError(f"--metric: {unknown_name('metric', metric, same or known)}; the trials are as they were")


def _leave(directory: SweepDirectory, trials: list[Trial], stop_signal: int | None) -> None:
    """End with the exit code that says how the sweep stands."""
    states = {trial: directory.state(trial) for trial in trials}
    failed = [trial for trial, state in states.items() if state == "failed"]
    done = sum(state == "done" for state in states.values())
    if failed:
        named = f"{failed[0].name} ({directory.failure(failed[0])})"
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        typer.echo(f"error: {len(failed)} of {len(trials)} trials failed: {named}{more}; --retry-failed", err=True)
    if stop_signal is not None or done + len(failed) < len(trials):
        typer.echo(f"stopped: {done} of {len(trials)} trials are done; the same command goes on", err=True)
        raise typer.Exit(128 + stop_signal if stop_signal is not None else 1)
    if failed:
        raise typer.Exit(1)
