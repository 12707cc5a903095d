"""`lab resume [RUN] [key=value ...]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Plugin, Root, RunCode
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from pathlib import Path

    from omegaconf import DictConfig

    from rl_lab.cli.running import Job
    from rl_lab.config.schema import ResumeMode
    from rl_lab.core.ranks import Ranks
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
        str,
        typer.Option(
            "--mode", help="exact (goes on in the run); of a new run: fork, warm_start or warm_start_optimizer."
        ),
    ] = "exact",
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Of a new run: this one instead of the newest.")
    ] = None,
    run_code: RunCode = False,
    root: Root = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a run to the bit, or start a new one from its checkpoint or its weights."""
    with Reported(debug):
        from rl_lab.cli.code_state import settle_code
        from rl_lab.cli.processes import ranks_of
        from rl_lab.cli.running import print_results, result_of, run_to_end
        from rl_lab.cli.self_test import check_resume
        from rl_lab.config.resume import recompose

        run, overrides = read_run(arguments or [], root or DEFAULT_ROOT)
        context.params["arguments"] = [str(run.path), *overrides]  # of the run's own code: no newer run than this
        settle_code(run, plugin or [], context if run_code else None)
        checked = _checked(mode, checkpoint)
        composed = recompose(run, overrides)
        with ranks_of(context, composed) as ranks:
            is_quiet = as_json or not ranks.is_first
            job = _job(run, composed, checked, checkpoint, plugin or [], ranks, quiet=is_quiet)
            if not is_quiet:
                typer.echo(f"run: {job.run.path}")
            run_to_end(job, quiet=as_json)
            check_resume(job)
            if ranks.is_first:
                print_results([result_of(job.run)], as_json)


def read_run(arguments: list[str], root: str) -> tuple[RunDirectory, list[str]]:
    """Return the run that the arguments name, else the newest one, and the overrides."""
    from pathlib import Path

    from rl_lab.tracking.catalogue import find_run

    is_named = bool(arguments) and ("=" not in arguments[0] or Path(arguments[0]).is_dir())
    return find_run(root, arguments[0] if is_named else None), arguments[is_named:]


def _checked(mode: str, checkpoint: str | None) -> ResumeMode:
    """Return the mode, which goes with this checkpoint."""
    from rl_lab.config.resume import DROPPED
    from rl_lab.core.errors import UsageError, unknown_name

    if mode not in DROPPED:
        raise UsageError(unknown_name("--mode", mode, DROPPED))
    if mode == "exact" and checkpoint is not None:
        raise UsageError(
            "--checkpoint needs --mode warm_start or fork: an exact resume goes on from the newest whole checkpoint"
        )
    return mode


def _job(
    run: RunDirectory,
    composed: DictConfig,
    mode: ResumeMode,
    checkpoint: str | None,
    plugins: list[str],
    ranks: Ranks,
    *,
    quiet: bool,
) -> Job:
    from omegaconf import OmegaConf

    from rl_lab.cli.running import continued_job, new_job
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.resume import DROPPED
    from rl_lab.config.targets import Targets

    targets = Targets(AllowList(load_plugins(plugins)))
    if mode == "exact":
        return continued_job(run, composed, targets, quiet=quiet, ranks=ranks)
    if ranks.is_first:
        typer.echo(f"{mode} from {run.path}: drops {DROPPED[mode]}", err=True)
    begins_with = {"resume_path": str(_source(run, checkpoint)), "resume_mode": mode, "resume_parts": None}
    OmegaConf.update(composed, "training", begins_with)  # it does so again where it dies before its first checkpoint
    return new_job(composed, targets, None, quiet=quiet, ranks=ranks)


def _source(run: RunDirectory, checkpoint: str | None) -> Path:
    """Return what a new run begins with: one checkpoint of the run, or its newest."""
    from pathlib import Path

    from rl_lab.core.errors import CheckpointError

    place = Path(checkpoint or run.path).absolute()
    if checkpoint is not None and not (place / "MANIFEST.json").is_file():
        raise CheckpointError(f"no checkpoint at {checkpoint} (expected a directory with MANIFEST.json)")
    return place
