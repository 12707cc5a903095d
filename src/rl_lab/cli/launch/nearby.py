"""`lab launch local|ssh|slurm|ray`: machines that are there already."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rl_lab.cli.launch.options import Cpus, Dir, DryRun, Gpus, Name, Nodes, Python, SamePython, Setup, Words, Workers
from rl_lab.cli.launch.starting import launch, need
from rl_lab.cli.launch.verbs import DEFAULT, Launches
from rl_lab.cli.options import Debug
from rl_lab.cli.report import Reported

SELF = sys.executable


def local(
    words: Words,
    name: Name = None,
    again: Annotated[
        bool, typer.Option("--again", help="Go on with the launch of this name, if there is one.")
    ] = False,
    dry_run: DryRun = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """On this machine: the command outlives the terminal."""
    with Reported(debug):
        from rl_lab.launching.places.here import Here

        launch("local", Here(), words, name, launches, dry_run=dry_run, again=again)


def ssh(
    words: Words,
    host: Annotated[
        str | None, typer.Option("--host", help="As ssh knows it: name, address, user@name.", show_default=False)
    ] = None,
    directory: Dir = None,
    python: Python = "python3",
    setup: Setup = None,
    name: Name = None,
    dry_run: DryRun = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """On a machine behind ssh: the project is copied there by rsync."""
    with Reported(debug):
        from rl_lab.launching.places.ssh import Ssh

        place = Ssh(need("--host", host, dry_run=dry_run), directory, python, tuple(setup or ()))
        launch("ssh", place, words, name, launches, dry_run=dry_run)


def slurm(
    words: Words,
    partition: Annotated[str | None, typer.Option("--partition", help="Of the cluster.", show_default=False)] = None,
    python: SamePython = SELF,
    nodes: Nodes = 1,
    gpus: Gpus = 0,
    cpus: Cpus = 1,
    memory: Annotated[str | None, typer.Option("--memory", help="Per node, e.g. 16G.", show_default=False)] = None,
    time: Annotated[
        str | None, typer.Option("--time", help="Limit of a job, e.g. 24:00:00.", show_default=False)
    ] = None,
    workers: Workers = 1,
    account: Annotated[str | None, typer.Option("--account", help="Who pays.", show_default=False)] = None,
    setup: Setup = None,
    name: Name = None,
    dry_run: DryRun = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """On a Slurm cluster, from its login node: jobs that go on when they are preempted or their time is up."""
    with Reported(debug):
        from rl_lab.launching.places.slurm import Slurm

        place = Slurm(
            need("--partition", partition, dry_run=dry_run),
            python,
            nodes,
            gpus,
            cpus,
            memory,
            time,
            workers,
            account,
            tuple(setup or ()),
        )
        launch("slurm", place, words, name, launches, dry_run=dry_run)


def ray(
    words: Words,
    address: Annotated[str, typer.Option("--address", help="Of the dashboard.")] = "http://127.0.0.1:8265",
    python: SamePython = SELF,
    gpus: Gpus = 0,
    cpus: Cpus = 1,
    name: Name = None,
    dry_run: DryRun = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """On a Ray cluster that runs already; this directory must be the same on all its nodes."""
    with Reported(debug):
        from rl_lab.launching.places.ray_job import RayJob

        launch("ray", RayJob(address, python, gpus, cpus), words, name, launches, dry_run=dry_run)
