"""`lab runs watch`: alerts of runs on this disk, from outside: what a dead run cannot say itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Root
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rl_lab.config.watching import Watched

_RECENT_S = 86_400.0  # runs that died longer ago are left in peace unless they are named


def watch(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs and filters, as of `lab runs list`; none: those that run, or died within a day.",
            show_default=False,
            metavar="[RUNS|FILTERS]...",
        ),
    ] = None,
    rules: Annotated[
        str | None, typer.Option("--rules", help="A YAML file with an alerts block, for all runs.", show_default=False)
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Look once; exit code 1 when something is wrong.")] = False,
    root: Root = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Apply the alert rules of runs, and that they live, from another process. The runs are only read."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.config.watching import read_rules

        own = None if rules is None else read_rules(Path(rules))
        watched: dict[Path, Watched] = {}
        while True:
            wrong = _look(watched, words or [], root or DEFAULT_ROOT, own, as_json)
            if once:
                raise typer.Exit(1 if wrong else 0)
            time.sleep(every)


def _look(
    watched: dict[Path, Watched], words: Sequence[str], root: str, rules: Mapping[str, Any] | None, as_json: bool
) -> int:
    """Look at every chosen run, print and tell what is new, and return how much is wrong now."""
    from rl_lab.config.watching import Watched
    from rl_lab.core.errors import RunDirectoryError

    wrong = 0
    for path in _chosen(words, root):
        try:
            if path not in watched:
                watched[path] = Watched(path, rules)
            alerts = watched[path].look(time.time())
        except (RunDirectoryError, OSError) as error:  # it is being removed
            typer.echo(f"{path.name} cannot be read: {error}", err=True)
            watched.pop(path, None)
            continue
        for alert in alerts:
            _print(alert.to_json(), as_json)
        for failure in watched[path].failures():
            typer.echo(f"an alert was not told: {failure}", err=True)
        wrong += watched[path].count_wrong()
    return wrong


def _chosen(words: Sequence[str], root: str) -> list[Path]:
    from rl_lab.tracking.catalogue import choose_runs

    runs = [run for run in choose_runs(root, words) if run.status != "damaged"]
    if not words:
        lives = {"running": 0.0, "killed": time.time() - _RECENT_S}
        runs = [run for run in runs if run.active >= lives.get(run.status, float("inf"))]
    return [run.path for run in runs]


def _print(alert: dict[str, Any], as_json: bool) -> None:
    import json

    stamp = time.strftime("%H:%M:%S", time.localtime(alert["time"]))
    typer.echo(json.dumps(alert) if as_json else f"{stamp} {alert['run']}: {alert['message']}")
