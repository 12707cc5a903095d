"""`lab runs`: what has been run, from the run directories alone."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Root
from rl_lab.cli.report import Reported

app = typer.Typer(help="List, show, compare and restore runs.", no_args_is_help=True)
Run = Annotated[str | None, typer.Argument(help="A run directory, name or id; none: the newest.", show_default=False)]


@app.command("list")
def list_(root: Root = None, as_json: Json = False, debug: Debug = False) -> None:
    """List the runs, newest first."""
    with Reported(debug):
        import time

        from rl_lab.tracking.catalogue import list_runs

        runs = list_runs(root or DEFAULT_ROOT)
        if as_json:
            typer.echo(json.dumps([run.to_json() for run in runs], indent=1))
            return
        rows = [
            [
                run.path.name,
                run.status,
                f"{run.env_steps:,}",
                f"{run.updates:,}",
                "" if run.score is None else f"{run.score:.6g}",
                time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
            ]
            for run in runs
        ]
        _print_table(["run", "status", "env steps", "updates", "best return", "created"], rows)


@app.command("show")
def show(run: Run = None, root: Root = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show a run: its manifest, config, checkpoints, last metrics and events."""
    with Reported(debug):
        from rl_lab.tracking.catalogue import find_run, show_run

        shown = show_run(find_run(root or DEFAULT_ROOT, run).path)
        if as_json:
            typer.echo(json.dumps(shown, indent=1))
            return
        for title in ("run", "manifest", "metrics"):
            _print_table([title, ""], [[key, _short(value)] for key, value in shown[title].items()])
        checkpoints = [
            [str(c["serial"]), _short(c["counters"]), c["phase"], _short(c["score"])] for c in shown["checkpoints"]
        ]
        _print_table(["checkpoint", "counters", "phase", "score"], checkpoints)
        _print_table(
            ["event", ""], [[e["kind"], _short({k: v for k, v in e.items() if k != "kind"})] for e in shown["events"]]
        )
        typer.echo(shown["config"] or "no config.yaml")


@app.command("fingerprint")
def fingerprint(run: Run = None, root: Root = None, as_json: Json = False, debug: Debug = False) -> None:
    """Print one hash per part of a run's newest checkpoint: equal runs have equal hashes."""
    with Reported(debug):
        from rl_lab.tracking import fingerprint as fingerprints
        from rl_lab.tracking.catalogue import find_run

        hashes = fingerprints.fingerprint(find_run(root or DEFAULT_ROOT, run))
        if as_json:
            typer.echo(json.dumps(hashes, indent=1))
            return
        for name, digest in hashes.items():
            typer.echo(f"{name:<12} {digest}")


@app.command("restore")
def restore(
    run: Annotated[str, typer.Argument(help="A run directory, name or id.")],
    directory: Annotated[str, typer.Argument(help="A new or empty directory.")],
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Lay out the code that a run was made with: sources, commit and uncommitted changes."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.tracking.catalogue import find_run
        from rl_lab.tracking.code_snapshot import lay_out

        lay_out(find_run(root or DEFAULT_ROOT, run).code, Path(directory))
        typer.echo(f"code: {Path(directory).absolute()}")


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _print_table(titles: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    from rl_lab.tracking.terminal import make_console

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    make_console().print(table)
