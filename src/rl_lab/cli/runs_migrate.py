"""`lab runs migrate`: runs of older labs in today's layout on the disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Root
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from pathlib import Path

    from rl_lab.config.migration import Migration

_SHOWN = 5  # options that a line names


def migrate(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only these runs (names and filters).", show_default=False, metavar="[RUNS|FILTERS]..."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this nothing is changed.")] = False,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write configs and checkpoints of older labs anew in today's layout; what they were stays in before_migration.

    Every command reads older runs as they are: this is for other programs, and for a later lab that does not.
    Without --yes it only says what would change.
    """
    with Reported(debug):
        from rl_lab.tracking.catalogue import choose_runs

        told: list[Migration] = []
        refused: dict[str, str] = {}
        for run in choose_runs(root or DEFAULT_ROOT, words or []):
            planned = _migrated(run.path, yes, refused)
            if planned is not None and (planned.files or planned.checkpoints or planned.kept):
                told.append(planned)
        if as_json:
            typer.echo(
                json.dumps({"runs": [_object(each) for each in told], "done": yes, "refused": refused}, indent=1)
            )
        else:
            _print(told, yes)
        for path, why in refused.items():
            typer.echo(f"passed over: {path}: {why}", err=True)
        if refused:
            raise typer.Exit(1)


def _migrated(path: Path, yes: bool, refused: dict[str, str]) -> Migration | None:
    """Plan a run, and carry it out where that is asked for; None where it cannot be read or is in use."""
    from rl_lab.config.migration import migrate_run, plan_migration
    from rl_lab.core.durable import reason
    from rl_lab.core.errors import LabError
    from rl_lab.tracking.run_directory import RunDirectory

    try:
        planned = plan_migration(RunDirectory.open(path))
        if yes and (planned.files or planned.checkpoints):
            return migrate_run(planned.run)
    except LabError as error:
        refused[str(path)] = str(error)
        return None
    except OSError as error:
        refused[str(path)] = reason(error)
        return None
    return planned


def _object(planned: Migration) -> dict[str, Any]:
    return {
        "run": str(planned.run.path),
        "files": list(planned.files),
        "keys": planned.keys,
        "checkpoints": planned.checkpoints,
        "kept": planned.kept,
    }


def _print(told: list[Migration], yes: bool) -> None:
    for planned in told:
        parts = []
        if planned.files:
            more = f" and {len(planned.keys) - _SHOWN} more" if len(planned.keys) > _SHOWN else ""
            parts.append(f"{', '.join(planned.files)} ({', '.join(planned.keys[:_SHOWN])}{more})")
        parts += [f"checkpoint {name}" for name in planned.checkpoints]
        parts += [f"checkpoint {name} stays: {why}" for name, why in planned.kept.items()]
        typer.echo(f"{planned.run.path.name}: {'; '.join(parts)}")
    count = sum(bool(planned.files or planned.checkpoints) for planned in told)
    typer.echo(f"{count} runs {'were brought' if yes else 'can be brought'} into today's layout")
    if count and not yes:
        typer.echo("nothing was changed; --yes does it")
