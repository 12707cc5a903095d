"""`lab resume [RUN] [key=value ...]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Plugin, Root
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from rl_lab.cli.running import Job


def resume(
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
    root: Root = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a run to the bit, or start a new one from its weights."""
    with Reported(debug):
        from rl_lab.cli.running import opened, print_results, result_of

        job = _job(arguments or [], mode, checkpoint, root or DEFAULT_ROOT, plugin or [], quiet=as_json)
        if not as_json:
            typer.echo(f"run: {job.run.path}")
        with opened(job, quiet=as_json) as orchestrator:
            orchestrator.run()
        print_results([result_of(job.run)], as_json)


def _job(arguments: list[str], mode: str, checkpoint: str | None, root: str, plugins: list[str], *, quiet: bool) -> Job:
    from pathlib import Path

    from rl_lab.cli.running import continued_job, new_job
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.resume import DROPPED, Start, recompose
    from rl_lab.config.targets import Targets
    from rl_lab.core.errors import UsageError, unknown_name
    from rl_lab.tracking.catalogue import find_run

    names, overrides = arguments[:1], arguments[1:]
    if names and "=" in names[0] and not Path(names[0]).is_dir():
        names, overrides = [], arguments
    if mode not in DROPPED:
        raise UsageError(unknown_name("--mode", mode, DROPPED))
    if mode == "exact" and checkpoint is not None:
        raise UsageError(
            "--checkpoint needs --mode warm_start: an exact resume goes on from the newest whole checkpoint"
        )
    run = find_run(root, names[0] if names else None)
    targets = Targets(AllowList(load_plugins(plugins)))
    composed = recompose(run, overrides)
    if mode == "exact":
        return continued_job(run, composed, targets, quiet=quiet)
    typer.echo(f"{mode} from {run.path}: drops {DROPPED[mode]}", err=True)
    start = Start(run, mode, Path(checkpoint) if checkpoint else None)
    return new_job(composed, targets, None, start, quiet=quiet)
