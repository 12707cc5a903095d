"""`lab runs`: what has been run, from the run directories alone."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Root
from rl_lab.cli.report import Reported
from rl_lab.cli.runs_clean import clean
from rl_lab.cli.runs_compare import compare
from rl_lab.cli.runs_migrate import migrate
from rl_lab.cli.runs_verify import verify
from rl_lab.cli.runs_watch import watch
from rl_lab.cli.table import print_table

if TYPE_CHECKING:
    from rl_lab.tracking.catalogue import RunInfo

app = typer.Typer(help="List, show, compare, label, clean and restore runs.", no_args_is_help=True)
app.command("compare")(compare)
app.command("clean")(clean)
app.command("migrate")(migrate)
app.command("verify")(verify)
app.command("watch")(watch)
Run = Annotated[str | None, typer.Argument(help="A run directory, name or id; none: the newest.", show_default=False)]
NamedRun = Annotated[str, typer.Argument(help="A run directory, name or id.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs (directory, name or id) and filters: algorithm=ppo environment~Cheetah 'eval/return>3000' since=7d.",
        show_default=False,
        metavar="[RUNS|FILTERS]...",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", help="Columns, metrics and config keys, with commas between.", show_default=False),
]
_TIMES = ("created", "active", "time")
EXPORTED = ("id", "name", "algorithm", "environment", "seed", "status", "env_steps", "updates", "score")


class Format(StrEnum):
    """What `export` writes."""

    CSV = "csv"
    JSON = "json"
    LATEX = "latex"
    REGISTRY = "registry"


@app.command("list")
def list_(
    words: Words = None,
    sort: Annotated[str | None, typer.Option(help="Column, metric or config key.", show_default=False)] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    columns: Columns = None,
    limit: Annotated[int, typer.Option(min=0, help="Lines of the table; 0: all.")] = 50,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the runs, newest first."""
    with Reported(debug):
        from rl_lab.cli.runs_list import print_runs

        print_runs(
            words or [],
            sort=sort,
            reverse=reverse,
            columns=columns,
            limit=limit,
            root=root,
            as_json=as_json,
        )


@app.command("show")
def show(run: Run = None, root: Root = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show a run: its manifest, config, checkpoints, last metrics and events."""
    with Reported(debug):
        from rl_lab.tracking.catalogue import find_run, show_run

        shown = show_run(find_run(root or DEFAULT_ROOT, run).path)
        if as_json:
            typer.echo(json.dumps(shown, indent=1))
            return
        typer.echo(shown["config"] or "no config.yaml")
        for title in ("run", "manifest", "metrics"):
            print_table([title, ""], [[key, _told(key, value)] for key, value in shown[title].items()])
        titles = ["serial", "counters", "phase", "score"]
        print_table(["checkpoint", *titles[1:]], [[_told(key, c[key]) for key in titles] for c in shown["checkpoints"]])
        print_table(["event", ""], [[e.pop("kind"), _told("", e)] for e in shown["events"]])


@app.command("tag")
def tag(
    run: NamedRun,
    tags: Annotated[list[str] | None, typer.Argument(help="Tags to add.", show_default=False)] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A tag to remove.", show_default=False)] = None,
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Add tags to a run, or remove some, and print those that it has."""
    with Reported(debug):
        labels = _label(run, root, add=tags or [], remove=remove or [])
        typer.echo(f"tags: {', '.join(labels.tags) or 'none'}")


@app.command("pin")
def pin(
    run: NamedRun,
    undo: Annotated[bool, typer.Option("--undo", help="Let it go again.")] = False,
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Pin a run: `lab runs clean` never touches it."""
    with Reported(debug):
        labels = _label(run, root, pinned=not undo)
        typer.echo(f"pinned: {'yes' if labels.pinned else 'no'}")


@app.command("diff")
def diff(
    first: NamedRun,
    second: NamedRun,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show where the configs of two runs differ."""
    with Reported(debug):
        from rl_lab.core.errors import RunDirectoryError
        from rl_lab.tracking.catalogue import find_run
        from rl_lab.tracking.flat_config import differences
        from rl_lab.tracking.run_record import read_record

        records = [read_record(find_run(root or DEFAULT_ROOT, name).path) for name in (first, second)]
        for record in records:
            if not record.config:
                raise RunDirectoryError(f"{record.path / 'config.yaml'} is missing or damaged: nothing to compare")
        names = [record.path.name for record in records]
        found = differences([record.config for record in records])
        if as_json:
            typer.echo(json.dumps({key: list(values) for key, values in found.items()}, indent=1))
        elif found:
            print_table(["key", *names], [[key, *map(_short, values)] for key, values in found.items()])
        else:
            typer.echo("the configs are equal")


@app.command("export")
def export(
    words: Words = None,
    format_: Annotated[Format, typer.Option("--format", help="Of the table; registry: the mono-repo's.")] = Format.CSV,
    columns: Columns = None,
    sort: Annotated[str | None, typer.Option(help="Column, metric or config key.", show_default=False)] = None,
    out: Annotated[str | None, typer.Option(help="A file; none: the terminal.", show_default=False)] = None,
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Write a table of runs as CSV, JSON or LaTeX, or as a registry."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.cli.runs_list import split
        from rl_lab.tracking.catalogue import choose, values
        from rl_lab.tracking.index import Index

        keys = split(columns) or [*EXPORTED]
        with Index(root or DEFAULT_ROOT) as index:
            runs, _ = choose(index, words or [], sort)
            text = _exported(runs, format_, keys, values(index, runs, keys))
        if out is None:
            typer.echo(text, nl=False)
        else:
            from rl_lab.tracking.atomic import replace_file

            replace_file(Path(out), text, durable=False)
            typer.echo(f"{len(runs)} runs: {Path(out).absolute()}")


@app.command("reindex")
def reindex(root: Root = None, debug: Debug = False) -> None:
    """Throw the index away and read every run anew; needed only when it is in doubt."""
    with Reported(debug):
        from rl_lab.tracking.index import Index

        with Index(root or DEFAULT_ROOT) as index:
            typer.echo(f"{index.rebuild():,} runs in {index.root}")


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
    run: NamedRun,
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


def _label(run: str, root: str | None, **changes: Any) -> Any:
    from rl_lab.tracking.catalogue import find_run
    from rl_lab.tracking.labels import write_labels
    from rl_lab.tracking.run_record import read_record

    found = find_run(root or DEFAULT_ROOT, run)
    tags = read_record(found.path).config.get("experiment.tags")
    return write_labels(found, tags if isinstance(tags, list) else (), **changes)


def _exported(runs: list[RunInfo], format_: Format, keys: list[str], rows: list[list[Any]]) -> str:
    from rl_lab.tracking import tables

    if format_ is Format.REGISTRY:
        return json.dumps(tables.registry(runs), indent=1) + "\n"
    write = {Format.CSV: tables.to_csv, Format.JSON: tables.to_json, Format.LATEX: tables.to_latex}[format_]
    return write(keys, rows)


def _told(key: str, value: Any) -> str:
    """Return a value as a person reads it: seconds since 1970 as a date, the parts of a dict in a row."""
    if value in (None, [], ()):
        return ""
    if key in _TIMES:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_told(name, part)}" for name, part in value.items() if part is not None)
    return _short(value)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
