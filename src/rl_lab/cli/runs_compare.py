"""`lab runs compare`: groups of seeds side by side, beside published curves too."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Root
from rl_lab.cli.report import Reported
from rl_lab.cli.table import print_table

if TYPE_CHECKING:
    from pathlib import Path

    from rl_lab.tracking.comparison import Comparison
    from rl_lab.tracking.published import Gate


class Axis(StrEnum):
    """What curves are over."""

    STEPS = "steps"
    FRAMES = "frames"
    UPDATES = "updates"
    WALL = "wall"


class Statistic(StrEnum):
    """The middle of a band."""

    IQM = "iqm"
    MEAN = "mean"
    MEDIAN = "median"


class Figure(StrEnum):
    """What a picture shows."""

    CURVES = "curves"
    PROFILES = "profiles"
    IMPROVEMENTS = "improvements"


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs (directory, name or id) and filters; none: all but those of sweeps and launches.",
            show_default=False,
            metavar="[RUNS|FILTERS]...",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="eval/return, or a pattern: train/*loss; may be given again.", show_default=False),
    ] = None,
    group_by: Annotated[str, typer.Option(help="A column or config key, such as algorithm.gamma.")] = "name",
    axis: Annotated[Axis | None, typer.Option(help="Of curves; steps.", show_default=False)] = None,
    at: Annotated[float | None, typer.Option(help="Where scores are read; none: where the shortest run ends.")] = None,
    statistic: Annotated[Statistic, typer.Option(help="The middle of the bands.")] = Statistic.IQM,
    published: Annotated[bool, typer.Option("--published", help="Beside published curves of dm_control.")] = False,
    against: Annotated[str | None, typer.Option(help="Which published curve; none: the algorithm's.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 when a published point is not reached.")
    ] = False,
    out: Annotated[
        list[str] | None, typer.Option(help="A file: .html .png .svg .tex .csv .json; may be given again.")
    ] = None,
    figure: Annotated[Figure, typer.Option(help="In .png and .svg files.")] = Figure.CURVES,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare groups of seeds: mean, median, IQM with 95 % intervals, curves, profiles, probability of improvement."""
    with Reported(debug):
        from rl_lab.core.errors import UsageError
        from rl_lab.tracking.comparison import compare_experiments, compared_runs
        from rl_lab.tracking.curves import expand_metrics
        from rl_lab.tracking.published import gates

        files = _files(out or [])
        beside = published or against is not None
        if beside and axis not in (None, Axis.FRAMES):
            raise UsageError(f"--axis {axis}: published curves are over frames")
        if strict and not beside:
            raise UsageError("--strict goes with --published")
        if at is not None and not at >= 0:
            raise UsageError(f"--at must be >= 0, not {at:g}")
        axis = axis or (Axis.FRAMES if beside else Axis.STEPS)
        options: dict[str, Any] = {"group_by": group_by, "axis": axis.value, "at": at, "statistic": statistic.value}
        place, chosen = root or DEFAULT_ROOT, words or []
        names = expand_metrics(metric or ["eval/return"], lambda: [run.path for run in compared_runs(place, chosen)])
        found = [compare_experiments(place, chosen, metric=name, **options) for name in names]
        points = gates(found[0], against) if beside else []
        _tell(found, points, as_json)
        for path in files:
            _write(path, found, points, figure)
            typer.echo(f"written: {path.absolute()}", err=as_json)
        if strict and any(point.verdict == "below" for point in points):
            raise typer.Exit(1)


def _files(names: list[str]) -> list[Path]:
    """Return the files to write, refused before anything is computed."""
    from pathlib import Path

    from rl_lab.core.errors import UsageError, unknown_name
    from rl_lab.tracking.figures import require_matplotlib

    paths = [Path(name) for name in names]
    for path in paths:
        if path.suffix not in (".html", ".png", ".svg", ".tex", ".csv", ".json"):
            endings = ("html", "png", "svg", "tex", "csv", "json")
            raise UsageError(f"--out {path}: {unknown_name('ending', path.suffix.removeprefix('.'), endings)}")
        if path.suffix in (".html", ".png", ".svg"):
            require_matplotlib()
        if not path.absolute().parent.is_dir():
            raise UsageError(f"--out {path}: no such directory: {path.absolute().parent}")
    return paths


def _tell(found: list[Comparison], points: list[Gate], as_json: bool) -> None:
    from rl_lab.tracking import comparison_tables as tables
    from rl_lab.tracking.tables import show

    if as_json:
        objects = [tables.to_object(each, points if each is found[0] else []) for each in found]
        typer.echo(json.dumps(objects if len(objects) > 1 else objects[0], indent=1))
        return
    for each in found:
        typer.echo(each.metric)
        shown = [tables.score_table(each)]
        shown += [tables.improvement_table(each)] if each.improvements else []
        shown += [tables.gate_table(points)] if points and each is found[0] else []
        for titles, rows in shown:
            print_table(titles, [[show(value) for value in row] for row in rows])
        for note in each.notes:
            typer.echo(f"note: {note}")


def _write(path: Path, found: list[Comparison], points: list[Gate], figure: Figure) -> None:
    """Write a file; of several metrics each gets its own, except in a page, which has all of them."""
    from rl_lab.tracking import comparison_tables as tables
    from rl_lab.tracking.atomic import replace_file

    if path.suffix == ".html":
        replace_file(path, tables.to_html(found, points), durable=False)
        return
    for each in found:
        name = path.name if len(found) == 1 else f"{path.stem}_{each.metric.replace('/', '_')}{path.suffix}"
        _write_one(path.with_name(name), each, points if each is found[0] else [], figure)


def _write_one(path: Path, comparison: Comparison, points: list[Gate], figure: Figure) -> None:
    from rl_lab.tracking import comparison_tables as tables
    from rl_lab.tracking import figures
    from rl_lab.tracking.atomic import replace_file
    from rl_lab.tracking.tables import to_csv, to_latex

    if path.suffix in (".png", ".svg"):
        drawn = {
            Figure.CURVES: lambda: figures.draw_curves(comparison, points),
            Figure.PROFILES: lambda: figures.draw_profiles(comparison),
            Figure.IMPROVEMENTS: lambda: figures.draw_improvements(comparison),
        }
        figures.write_figure(drawn[figure](), path)
        return
    text = {
        ".tex": lambda: to_latex(*tables.score_table(comparison)),
        ".csv": lambda: to_csv(*tables.long_table(comparison)),
        ".json": lambda: json.dumps(tables.to_object(comparison, points), indent=1) + "\n",
    }[path.suffix]()
    replace_file(path, text, durable=False)
