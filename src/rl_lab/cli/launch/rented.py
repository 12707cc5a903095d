"""`lab launch gce|ec2|k8s`: machines that are made for the launch."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_lab.cli.launch.options import (
    Cpus,
    Dir,
    Disk,
    DryRun,
    Extras,
    Gpus,
    Machine,
    Name,
    Nodes,
    Setup,
    Words,
    Workers,
    Zone,
)
from rl_lab.cli.launch.starting import launch, need
from rl_lab.cli.launch.verbs import DEFAULT, Launches
from rl_lab.cli.options import Debug
from rl_lab.cli.report import Reported

GCE_PROJECT, EC2_IMAGE = "LAB_GCE_PROJECT", "LAB_EC2_IMAGE"  # environment variables


def gce(
    words: Words,
    project: Annotated[
        str | None, typer.Option("--project", envvar=GCE_PROJECT, help="Of the cloud: who pays.", show_default=False)
    ] = None,
    zone: Zone = "us-central1-a",
    machine: Machine = "n2-standard-8",
    image: Annotated[
        str | None,
        typer.Option(
            "--image", help="With rsync, Python 3.11 or later, and a driver for GPUs (Debian 12).", show_default=False
        ),
    ] = None,
    gpus: Gpus = 0,
    gpu_type: Annotated[
        str | None, typer.Option("--gpu-type", help="For instance nvidia-tesla-t4.", show_default=False)
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Whom ssh logs in as.")] = "lab",
    disk: Disk = 100,
    nodes: Nodes = 1,
    directory: Dir = None,
    extras: Extras = "mujoco,tune,ray",
    setup: Setup = None,
    name: Name = None,
    dry_run: DryRun = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """On Google's machines, which Ray's cluster launcher makes."""
    with Reported(debug):
        from rl_lab.launching.places.cloud import NO_DRIVER, Gce

        place = Gce(
            project=need("--project", project, dry_run=dry_run, variable=GCE_PROJECT),
            zone=zone,
            machine=machine,
            image=image or NO_DRIVER,
            gpus=gpus,
            gpu_type=gpu_type,
            user=user,
            disk_gb=disk,
            nodes=nodes,
            directory=directory,
            extras=extras,
            setup=_installation(setup, dry_run=dry_run),
        )
        launch("gce", place, words, name, launches, dry_run=dry_run)


def ec2(
    words: Words,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            envvar=EC2_IMAGE,
            help="ami-... with rsync, Python 3.11 or later, and a driver for GPUs.",
            show_default=False,
        ),
    ] = None,
    zone: Zone = "us-west-2a",
    machine: Machine = "c7i.2xlarge",
    user: Annotated[str, typer.Option("--user", help="Whom ssh logs in as.")] = "admin",
    disk: Disk = 100,
    nodes: Nodes = 1,
    directory: Dir = None,
    extras: Extras = "mujoco,tune,ray",
    setup: Setup = None,
    name: Name = None,
    dry_run: DryRun = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """On Amazon's machines, which Ray's cluster launcher makes."""
    with Reported(debug):
        from rl_lab.launching.places.cloud import Ec2

        place = Ec2(
            zone=zone,
            machine=machine,
            image=need("--image", image, dry_run=dry_run, variable=EC2_IMAGE),
            user=user,
            disk_gb=disk,
            nodes=nodes,
            directory=directory,
            extras=extras,
            setup=_installation(setup, dry_run=dry_run),
        )
        launch("ec2", place, words, name, launches, dry_run=dry_run)


def k8s(
    words: Words,
    image: Annotated[
        str | None, typer.Option("--image", help="Made by the Dockerfile, with the project.", show_default=False)
    ] = None,
    claim: Annotated[
        str | None, typer.Option("--claim", help="Volume claim that holds the runs.", show_default=False)
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Of the cluster.")] = "default",
    gpus: Gpus = 0,
    cpus: Cpus = 1,
    memory: Annotated[str, typer.Option("--memory", help="Per pod.")] = "8Gi",
    workers: Workers = 1,
    nodes: Nodes = 1,
    name: Name = None,
    dry_run: DryRun = False,
    launches: Launches = DEFAULT,
    debug: Debug = False,
) -> None:
    """On Kubernetes: a Job; with --nodes a sweep on a Ray cluster of pods (KubeRay)."""
    with Reported(debug):
        from rl_lab.launching.places.kubernetes import Kubernetes

        place = Kubernetes(
            need("--image", image, dry_run=dry_run),
            need("--claim", claim, dry_run=dry_run),
            namespace,
            gpus,
            cpus,
            memory,
            workers,
            nodes,
        )
        launch("k8s", place, words, name, launches, dry_run=dry_run)


def _installation(setup: list[str] | None, *, dry_run: bool) -> tuple[str, ...]:
    """Return the setup of rented machines; a dry run shows where that of a project which is no checkout would stand."""
    from pathlib import Path

    from rl_lab.launching.places.cloud import is_checkout

    if setup or not dry_run or is_checkout(Path.cwd()):
        return tuple(setup or ())
    return (need("--setup", None, dry_run=True),)
