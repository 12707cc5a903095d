"""`lab data`: list, show, replay, merge, film, splice, export and check what was recorded."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, ConfigDir, Debug, Json, Plugin, Root
from rl_lab.cli.report import Reported

app = typer.Typer(help="List, show, replay, join, film and export recorded episodes.", no_args_is_help=True)
Which = Annotated[
    str, typer.Argument(metavar="DATASET", help="A directory, packaged/NAME, or a run that recorded one.")
]
Target = Annotated[str, typer.Argument(metavar="OUT", help="A new file or directory.")]
Episodes = Annotated[str | None, typer.Option("--episodes", help="Such as 0,3,5-8 (all).", show_default=False)]
Pictures = Annotated[str, typer.Option("--pictures", help="How LeRobot keeps them: png, jpeg or video.")]
Fps = Annotated[float | None, typer.Option("--fps", min=0.01, help="Steps per second, where files do not tell.")]
CameraName = Annotated[str | None, typer.Option("--camera", help="One of the cameras (all side by side).")]


class Kind(StrEnum):
    """What can be written."""

    LAB = "lab"
    LEROBOT = "lerobot"
    CSV = "csv"
    HTML = "html"
    RERUN = "rerun"


@app.command("list")
def list_(
    path: Annotated[str | None, typer.Argument(help="Where to look (the runs).", show_default=False)] = None,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the datasets below a directory; damaged ones with what is wrong."""
    with Reported(debug):
        from rl_lab.cli.data.telling import list_datasets
        from rl_lab.cli.table import print_table

        rows = list_datasets(path or root or DEFAULT_ROOT)
        if as_json:
            typer.echo(json.dumps(rows, indent=1))
            return
        titles = ["dataset", "format", "robot", "episodes", "steps", "size", "problem"]
        print_table(titles, [[_text(row.get(title)) for title in titles] for row in rows])
        if not rows:
            typer.echo(f"no datasets below {path or root or DEFAULT_ROOT}")


@app.command("show")
def show(
    which: Which, episodes: Episodes = None, root: Root = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Show fields, episodes, lengths, interventions, verdicts and tasks."""
    with Reported(debug):
        from rl_lab.buffers.datasets.summary import summarize, summarize_episodes
        from rl_lab.cli.data.choosing import choose_episodes, open_named
        from rl_lab.cli.data.telling import print_dataset

        reader = open_named(which, root or DEFAULT_ROOT)
        rows = list(summarize_episodes(reader, choose_episodes(episodes, reader)))
        summary = summarize(reader)
        if as_json:
            typer.echo(json.dumps({**summary, "rows": rows}, indent=1))
            return
        print_dataset(summary, rows)


@app.command("stats")
def stats(
    which: Which,
    repair: Annotated[bool, typer.Option("--repair", help="Write right statistics into a LeRobot dataset.")] = False,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read everything: statistics, and what is wrong; exit code 1 when something is damaged."""
    with Reported(debug):
        from rl_lab.cli.data.checking import check_dataset
        from rl_lab.cli.data.choosing import open_named
        from rl_lab.cli.data.telling import print_statistics

        found = check_dataset(open_named(which, root or DEFAULT_ROOT, is_checked=False), repair=repair)
        if as_json:
            typer.echo(json.dumps(found, indent=1))
        else:
            print_statistics(found)
        if found["damage"]:
            raise SystemExit(1)


@app.command("merge")
def merge(
    target: Target,
    sources: Annotated[list[str], typer.Argument(metavar="DATASET...", help="Those that become one.")],
    format: Annotated[str | None, typer.Option("--format", help="lab, lerobot or csv (that of the first).")] = None,
    pictures: Pictures = "png",
    fps: Fps = None,
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Make one dataset of several of the same robot; differences are listed, and nothing is changed."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.buffers.datasets.merge import reject_strangers, write_new
        from rl_lab.cli.data.choosing import open_named
        from rl_lab.cli.data.writing import FORMATS, writer_like
        from rl_lab.core.errors import check_choice

        readers = [open_named(source, root or DEFAULT_ROOT) for source in sources]
        kind = format or (readers[0].format if readers[0].format in FORMATS else "lab")
        check_choice("--format", kind, FORMATS)
        reject_strangers(readers)
        make = writer_like(readers[0], kind, fps=fps, pictures=pictures, robot=None)
        count = write_new(Path(target), make, (episode for reader in readers for episode in reader.episodes()))
        typer.echo(f"merged: {target}, {count} episodes of {len(readers)} datasets")


@app.command("export")
def export(
    which: Which,
    target: Target,
    to: Annotated[Kind, typer.Option("--to", help="What to write.")],
    episodes: Episodes = None,
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", help="An observation or info, several times.", show_default=False)
    ] = None,
    pictures: Pictures = "png",
    every: Annotated[int, typer.Option("--every", min=1, help="Steps per picture in HTML.")] = 1,
    fps: Fps = None,
    robot: Annotated[str | None, typer.Option("--robot", help="What files call the robot.")] = None,
    skip_damaged: Annotated[bool, typer.Option("--skip-damaged", help="Pass over episodes that are damaged.")] = False,
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Write episodes in another format: a dataset, tables, one HTML page or a file for Rerun."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.cli.data.choosing import choose_episodes, open_named, read_without, reject_existing

        reader = open_named(which, root or DEFAULT_ROOT, is_checked=not skip_damaged)
        numbers, out = choose_episodes(episodes, reader), Path(target)
        if to in (Kind.HTML, Kind.RERUN):
            reject_existing(out)
            typer.echo(f"exported: {target}, {len(numbers)} episodes, {_show(reader, numbers, out, to, every):,} bytes")
            return
        from rl_lab.buffers.datasets.merge import write_new
        from rl_lab.cli.data.writing import writer_like

        make = writer_like(reader, to.value, fps=fps, pictures=pictures, robot=robot)
        told = (lambda line: typer.echo(f"skipped: {line}", err=True)) if skip_damaged else None
        count = write_new(out, make, read_without(reader, numbers, leave_out or [], told))
        typer.echo(f"exported: {target}, {count} episodes")


def _show(reader: Any, numbers: list[int], out: Any, to: Kind, every: int) -> int:
    """Write what is looked at and return its bytes."""
    if to is Kind.HTML:
        from rl_lab.cli.data.viewer import write_viewer

        return write_viewer(reader, numbers, out, every=every)
    from rl_lab.cli.data.rerun_file import write_rerun

    return write_rerun(reader, numbers, out)


@app.command("timelapse")
def timelapse(
    which: Which,
    target: Target,
    episodes: Episodes = None,
    camera: CameraName = None,
    columns: Annotated[int, typer.Option("--columns", min=1, help="Episodes side by side.")] = 4,
    every: Annotated[int, typer.Option("--every", min=1, help="Steps per picture.")] = 2,
    speed: Annotated[float, typer.Option("--speed", min=0.01, help="Times as fast as it was.")] = 4.0,
    root: Root = None,
    debug: Debug = False,
) -> None:
    """Film many episodes, faster than they were; an orange frame shows who acted."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.cli.data.choosing import choose_episodes, open_named
        from rl_lab.cli.data.films import film_episodes

        reader = open_named(which, root or DEFAULT_ROOT)
        numbers = choose_episodes(episodes, reader)
        options: dict[str, Any] = {"camera": camera, "columns": min(columns, len(numbers)), "every": every}
        typer.echo(f"film: {film_episodes(reader, numbers, Path(target), speed=speed, **options)}")


@app.command("splice")
def splice(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="It holds mp4 files.")],
    target: Target,
    fps: Annotated[float, typer.Option("--fps", min=0.01, help="Pictures per second.")] = 30.0,
    debug: Debug = False,
) -> None:
    """Put the films of a folder one behind another, in the order of their names and numbers."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.cli.data.splicing import splice_films

        path, count = splice_films(Path(folder), Path(target), fps)
        typer.echo(f"film: {path}, of {count} films")


@app.command("replay")
def replay(
    which: Which,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[OVERRIDES]...", help="key=value of --env.", show_default=False)
    ] = None,
    episode: Annotated[int, typer.Option("--episode", min=0, help="Which one.")] = 0,
    env: Annotated[
        str | None, typer.Option("--env", help="An environment, as of `lab env check` (that of the run).")
    ] = None,
    film: Annotated[str | None, typer.Option("--film", help="Film the replay into this file.")] = None,
    recorded: Annotated[
        str | None, typer.Option("--recorded-film", help="Film what was recorded, without any environment.")
    ] = None,
    camera: CameraName = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of an environment whose start is not recorded.")] = 0,
    root: Root = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give the recorded actions to a simulated environment once more and tell how far it ends from the recording."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.cli.data.choosing import open_named
        from rl_lab.cli.data.telling import print_replay

        reader = open_named(which, root or DEFAULT_ROOT)
        (number,) = reader.select([episode])
        if recorded is not None:
            from rl_lab.cli.data.films import film_episodes

            typer.echo(f"film: {film_episodes(reader, [number], Path(recorded), camera=camera)}")
            return
        from rl_lab.cli.data.places import find_environment
        from rl_lab.cli.data.replaying import replay_episode

        make, rescale = find_environment(reader, env, overrides or [], plugin or [], config_dir, draws=film is not None)
        options: dict[str, Any] = {"fps": reader.steps_per_second or 10.0, "seed": seed, "rescale": rescale}
        found = replay_episode(make, reader.read(number), film=None if film is None else Path(film), **options)
        if as_json:
            typer.echo(json.dumps({"dataset": str(reader.path), "episode": number, **found}, indent=1))
        else:
            print_replay(number, found)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
