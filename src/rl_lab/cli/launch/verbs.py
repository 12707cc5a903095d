"""`lab launch status|logs|pull|down|up|list`: what becomes of a launch, from its directory alone."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import Debug, Json
from rl_lab.cli.report import Reported
from rl_lab.cli.table import print_table

if TYPE_CHECKING:
    from rl_lab.launching.order import Order, Plan
    from rl_lab.launching.record import Launch

DEFAULT = "launches"
WAIT_S = 120.0  # for a checkpoint
POLL_S = 0.2
Launches = Annotated[
    str, typer.Option("--launches", envvar="LAB_LAUNCHES", help="Directory of the launches.", show_default=True)
]
Name = Annotated[str | None, typer.Argument(help="Of the launch; none: the newest.", show_default=False)]


def status(name: Name = None, launches: Launches = DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Say how a launch and its runs stand."""
    with Reported(debug):
        launch = _find(launches, name)
        if as_json:
            typer.echo(json.dumps(_standing(launch), indent=1))
            return
        typer.echo(f"launch: {launch.name} ({launch.place}), {_standing(launch)['state']}")
        if "status" in launch.commands and launch.is_started():
            _run(launch, "status")
        for run in _runs(launch):
            typer.echo(f"run: {run['run']} ({run['status']}, {run['env_steps']:,} env steps)")


def logs(
    name: Name = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until it ends.")] = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """Show the end of what a launch has printed."""
    with Reported(debug):
        launch = _find(launches, name)
        if "logs" in launch.commands:
            _run(launch, "follow" if follow else "logs")
        else:
            _show_logs(launch, follow)


def pull(name: Name = None, launches: Launches = DEFAULT, debug: Debug = False) -> None:
    """Copy the runs of a launch here."""
    with Reported(debug):
        launch = _find(launches, name)
        if "pull" in launch.commands:
            _run(launch, "pull")
        typer.echo(f"runs: {launch.project / launch.results}")


def down(name: Name = None, launches: Launches = DEFAULT, debug: Debug = False) -> None:
    """Stop a launch: its commands leave with a checkpoint. Rented machines are given back, once the runs are here."""
    with Reported(debug):
        launch = _find(launches, name)
        if "abandon" in launch.commands and not launch.is_started():
            _run(launch, "abandon")
        elif "down" in launch.commands:
            _run(launch, "down")
        else:
            _stop(launch)


def up(name: Name = None, launches: Launches = DEFAULT, debug: Debug = False) -> None:
    """Go on with a launch that was stopped, was killed or did not start."""
    with Reported(debug):
        begin(_find(launches, name))


def list_(launches: Launches = DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """List the launches, oldest first; what is on other machines is not asked for."""
    with Reported(debug):
        from rl_lab.launching import record

        rows = [_row(Path(launches), name) for name in record.names(Path(launches))]
        if as_json:
            typer.echo(json.dumps(rows, indent=1))
        else:
            titles = ["name", "place", "state", "created", "command"]
            print_table(titles, [[str(row.get(title, "")) for title in titles] for row in rows])


VERBS: dict[str, Any] = {"status": status, "logs": logs, "pull": pull, "down": down, "up": up, "list": list_}


def begin(launch: Launch) -> None:
    """Start a launch, or go on with it."""
    from rl_lab.launching import keeper
    from rl_lab.launching.record import LaunchError

    if launch.place == "local":
        keeper.start(launch)
    else:
        try:
            _run(launch, "up" if launch.is_started() else "start")
        except LaunchError as error:
            raise LaunchError(f"{error}; `lab launch up {launch.name}` tries again") from error
    launch.set_started()
    typer.echo(f"launch: {launch.name} ({launch.path})")


def go_on(root: Path, name: str, words: list[str]) -> None:
    """Go on with a launch of this machine, if it is of the same command; one that runs is left alone."""
    from rl_lab.cli.launch.words import canonical
    from rl_lab.core.errors import UsageError
    from rl_lab.launching import keeper, record

    launch = record.read(root, name)
    if canonical(launch.words) != canonical(words):
        raise UsageError(f"--name {name} is that of another command: lab {shlex.join(launch.words)}")
    if keeper.state_of(launch).word == "running":
        typer.echo(f"launch: {launch.name} ({launch.path}), running")
        return
    begin(launch)


def show_plan(order: Order, plan: Plan) -> None:
    """Print the files and command lines of a launch."""
    for name, text in plan.files.items():
        typer.echo(f"# {order.file(name)}\n{text}")
    for task in order.tasks:
        typer.echo(f"# runs: {shlex.join(['lab', *task])}")
    for verb, commands in plan.commands.items():
        typer.echo(f"# {verb}")
        for command in commands:
            typer.echo(shlex.join(command))


def _find(launches: str, name: str | None) -> Launch:
    from rl_lab.core.errors import UsageError
    from rl_lab.launching import record

    root = Path(launches)
    known = record.names(root)
    if name is None and not known:
        raise UsageError(f"no launches in {root.absolute()}; `lab launch local train ...` makes one")
    return record.read(root, known[-1] if name is None else name)


def _run(launch: Launch, verb: str) -> None:
    from rl_lab.launching.runner import run

    run(launch, verb, typer.echo)


def _row(root: Path, name: str) -> dict[str, Any]:
    """Return a launch's line; one whose record cannot be read hides no other."""
    from rl_lab.launching import record

    try:
        return _standing(record.read(root, name))
    except record.LaunchError as error:
        return {"name": name, "state": "damaged", "directory": str(root / name), "why": str(error)}


def _standing(launch: Launch) -> dict[str, Any]:
    """Return a launch's line; how one elsewhere stands is not known here."""
    from rl_lab.launching import keeper

    is_here = launch.place == "local"
    state = keeper.state_of(launch) if is_here else None
    started = "started" if launch.is_started() else "not started"
    return {
        "name": launch.name,
        "place": launch.place,
        "state": state.word if state else started,
        "created": launch.created,
        "command": shlex.join(["lab", *launch.words]),
        "directory": str(launch.path),
        "results": str(launch.project / launch.results),
        **({"codes": list(state.codes)} if state else {}),
        "runs": _runs(launch),
    }


def _runs(launch: Launch) -> list[dict[str, Any]]:
    """Return the runs of a launch that are on this machine."""
    from rl_lab.tracking.catalogue import describe

    place = launch.project / launch.results
    candidates = [place, *sorted(place.glob("seed_*")), *sorted(place.glob("trials/*"))]
    described = [describe(path) for path in candidates if (path / "manifest.json").is_file()]
    return [{"run": str(run.path), "status": run.status, "env_steps": run.env_steps or 0} for run in described]


def _stop(launch: Launch) -> None:
    from rl_lab.launching import keeper
    from rl_lab.launching.record import LaunchError

    if not keeper.stop(launch):
        typer.echo(f"launch: {launch.name} is not running ({keeper.state_of(launch).word})")
        return
    if not keeper.wait(launch, WAIT_S):
        raise LaunchError(f"launch {launch.name} has not ended in {WAIT_S:g} s; down once more ends it at once")
    typer.echo(f"launch: {launch.name}, {keeper.state_of(launch).word}; `lab launch up {launch.name}` goes on")


def _show_logs(launch: Launch, follow: bool) -> None:
    """Print the last lines of the launch's logs, and with `follow` what is added while it runs."""
    from rl_lab.launching import keeper
    from rl_lab.launching.order import TAIL

    files = sorted(launch.path.glob("*.log"))
    if not files:
        typer.echo(f"launch: {launch.name} has printed nothing yet")
    for path in files:
        if len(files) > 1:
            typer.echo(f"==> {path} <==")
        with open(path, errors="replace") as file:
            for line in file.readlines()[-TAIL:]:
                typer.echo(line, nl=False)
            while follow and path == files[-1]:
                is_over = launch.place == "local" and keeper.state_of(launch).word != "running"
                typer.echo(file.read(), nl=False)  # after the question: nothing is written behind these lines
                if is_over:
                    break
                time.sleep(POLL_S)
