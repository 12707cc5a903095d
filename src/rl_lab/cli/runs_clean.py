"""`lab runs clean`: room on the disk, without losing what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Root
from rl_lab.cli.report import Reported
from rl_lab.cli.table import print_table

if TYPE_CHECKING:
    from rl_lab.tracking.retention import Plan

_SHOWN = 20


def clean(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only these runs (names and filters).", show_default=False, metavar="[RUNS|FILTERS]..."),
    ] = None,
    keep_best: Annotated[int, typer.Option(min=0, help="Runs of every environment, by the metric.")] = 10,
    keep_recent: Annotated[float, typer.Option(min=0, help="Days since a run was last active.")] = 30.0,
    metric: Annotated[str, typer.Option(help="Whose highest value says which are best.")] = "eval/return",
    only_buffers: Annotated[
        bool, typer.Option("--only-buffers", help="Keep weights: replay buffers go alone.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this nothing is changed.")] = False,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Drop buffers, checkpoints, films and TensorBoard files of runs that are neither best, recent, pinned nor running.

    Configs, metrics, events and code stay. Without --yes it only says what would go.
    """
    with Reported(debug):
        from rl_lab.tracking.retention import carry_out, plan_cleaning

        plan = plan_cleaning(
            root or DEFAULT_ROOT,
            words or [],
            keep_best=keep_best,
            keep_recent=keep_recent,
            metric=metric,
            extent="buffers" if only_buffers else "checkpoints",
        )
        if not as_json:
            _print_plan(plan)
        outcomes = list(carry_out(plan)) if yes else []
        refused = [outcome for outcome in outcomes if outcome.refusal is not None]
        freed = sum(outcome.num_bytes for outcome in outcomes)
        if as_json:
            _print_json(plan, freed, {str(each.run.path): str(each.refusal) for each in refused}, yes)
        elif yes:
            typer.echo(f"freed {size(freed)} in {len(outcomes) - len(refused)} runs")
        elif plan.doomed:
            typer.echo("nothing was changed; --yes does it")
        for outcome in refused:
            typer.echo(f"passed over: {outcome.refusal}", err=True)
        if refused:
            raise typer.Exit(1)


def size(num_bytes: float) -> str:
    """Return a number of bytes as a person reads it."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def _print_plan(plan: Plan) -> None:
    largest = sorted(plan.doomed, key=lambda doomed: doomed.num_bytes, reverse=True)
    if largest:
        rows = [[each.run.shown, each.run.status, size(each.num_bytes)] for each in largest[:_SHOWN]]
        print_table(["run", "status", plan.extent], rows)
    if len(largest) > _SHOWN:
        typer.echo(f"and {len(largest) - _SHOWN} more")
    kept = ", ".join(f"{count} {why}" for why, count in plan.kept.items()) or "none"
    typer.echo(f"{size(plan.num_bytes)} in {len(plan.doomed)} runs can go; kept: {kept}")


def _print_json(plan: Plan, freed: int, refused: dict[str, str], yes: bool) -> None:
    import json

    runs = {str(each.run.path): each.num_bytes for each in plan.doomed}
    told = {"extent": plan.extent, "runs": runs, "bytes": plan.num_bytes, "kept": dict(plan.kept)}
    typer.echo(json.dumps(told | {"done": yes, "bytes_freed": freed, "refused": refused}, indent=1))
