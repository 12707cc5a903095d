"""The `lab` command. Each command lives in its own file and imports what is heavy only when it runs."""

from __future__ import annotations

import typer

from rl_lab import __version__
from rl_lab.cli.actor import actor
from rl_lab.cli.certs import app as certs
from rl_lab.cli.compat import SETTINGS, compat
from rl_lab.cli.data.commands import app as data
from rl_lab.cli.doctor import doctor
from rl_lab.cli.env import app as env
from rl_lab.cli.evaluate import evaluate
from rl_lab.cli.export import export
from rl_lab.cli.launch.commands import app as launch
from rl_lab.cli.learner import learner
from rl_lab.cli.listing import list_
from rl_lab.cli.play import play
from rl_lab.cli.resume import resume
from rl_lab.cli.runs import app as runs
from rl_lab.cli.start import start
from rl_lab.cli.sweep import sweep
from rl_lab.cli.train import train
from rl_lab.cli.tune import tune
from rl_lab.cli.usage import Commands

app = typer.Typer(
    name="lab",
    cls=Commands,
    help="One lab for reinforcement learning: one YAML, one command, resumable to the bit.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train)
app.command("resume")(resume)
app.command("sweep")(sweep)
app.command("tune")(tune)
app.command("learner")(learner)
app.command("actor")(actor)
app.command("start")(start)
app.command("evaluate")(evaluate)
app.command("play")(play)
app.command("export")(export)
app.add_typer(launch, name="launch")
app.add_typer(runs, name="runs")
app.add_typer(env, name="env")
app.add_typer(certs, name="certs")
app.add_typer(data, name="data")
app.command("list")(list_)
app.command("doctor")(doctor)
app.command("compat", context_settings=SETTINGS)(compat)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """One lab for reinforcement learning: one YAML, one command, resumable to the bit."""


def main() -> None:
    """Run the command line."""
    app()
