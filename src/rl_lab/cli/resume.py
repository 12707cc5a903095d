"""`lab resume [RUN] [key=value ...]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Plugin, Root, RunCode
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from rl_lab.cli.running import Job
    from rl_lab.tracking.run_directory import RunDirectory


def resume(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [OVERRIDES]...",
            help="A run directory (none: the newest), then key=value.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option("--mode", help="exact (goes on in the run), warm_start or warm_start_optimizer (a new run).")
    ] = "exact",
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="For a warm start: this one instead of the newest.")
    ] = None,
    run_code: RunCode = False,
    root: Root = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a run to the bit, or start a new one from its weights."""
    with Reported(debug):
        from rl_lab.cli.code_state import settle_code
        from rl_lab.cli.running import opened, print_results, result_of

        run, overrides = _read(arguments or [], root or DEFAULT_ROOT)
        settle_code(run, plugin or [], context if run_code else None)
        job = _job(run, overrides, mode, checkpoint, plugin or [], quiet=as_json)
        if not as_json:
            typer.echo(f"run: {job.run.path}")
        with opened(job, quiet=as_json) as orchestrator:
            orchestrator.run()
        print_results([result_of(job.run)], as_json)


def _read(arguments: list[str], root: str) -> tuple[RunDirectory, list[str]]:
    """Return the run that the arguments name, else the newest one, and the overrides."""
    from pathlib import Path

    from rl_lab.tracking.catalogue import find_run

    is_named = bool(arguments) and ("=" not in arguments[0] or Path(arguments[0]).is_dir())
    return find_run(root, arguments[0] if is_named else None), arguments[is_named:]


def _job(
    run: RunDirectory, overrides: list[str], mode: str, checkpoint: str | None, plugins: list[str], *, quiet: bool
) -> Job:
    from pathlib import Path

    from rl_lab.cli.running import continued_job, new_job
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.resume import DROPPED, Start, recompose
    from rl_lab.config.targets import Targets
    from rl_lab.core.errors import UsageError, unknown_name

    if mode not in DROPPED:
        raise UsageError(unknown_name("--mode", mode, DROPPED))
    if mode == "exact" and checkpoint is not None:
        raise UsageError(
            "--checkpoint needs --mode warm_start: an exact resume goes on from the newest whole checkpoint"
        )
    targets = Targets(AllowList(load_plugins(plugins)))
    composed = recompose(run, overrides)
    if mode == "exact":
        return continued_job(run, composed, targets, quiet=quiet)
    typer.echo(f"{mode} from {run.path}: drops {DROPPED[mode]}", err=True)
    start = Start(run, mode, Path(checkpoint) if checkpoint else None)
    return new_job(composed, targets, None, start, quiet=quiet)
