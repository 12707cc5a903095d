"""Rented machines (GCE, EC2): a Ray cluster file, and `lab launch local` on the machine that it describes.

Ray makes the machines, copies the project and opens ssh; its ports stay closed to the world.
"""

from __future__ import annotations

import posixpath
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from rl_lab.core.errors import UsageError
from rl_lab.launching.order import RAY_VERSION, SHARED_QUEUE, Command, Order, Plan, check_directory, lab, on_ray
from rl_lab.launching.places.ssh import NOT_SENT, ON_MACHINE, on_machine

CLUSTER = "cluster.yaml"
VENV = "~/lab-venv"
NO_DRIVER = "projects/debian-cloud/global/images/family/debian-12"  # has Python 3.11
PREPARE = (  # cloud-init may still hold apt's lock on a new machine
    "cloud-init status --wait || true",
    "sudo apt-get update -qq && sudo apt-get install -y -qq python3-venv",
)


@dataclass(frozen=True, kw_only=True)
class Cloud(ABC):
    """What both clouds need.

    Attributes:
        zone: Where the machines are.
        machine: Their type.
        image: Their disk image, with rsync and Python 3.11 or later; with a GPU driver where there is a GPU.
        user: Whom ssh logs in as.
        disk_gb: Of each machine.
        nodes: One, or several for a sweep whose `--dir` all of them see (mounted by `setup`).
        directory: There, where the commands run. None: `~/rl-lab/NAME`, where the project is copied to.
        extras: Of the lab, that are installed.
        setup: Commands on every machine, in the copied project and with the environment of the lab active.
    """

    zone: str
    machine: str
    image: str
    user: str
    disk_gb: int = 100
    nodes: int = 1
    directory: str | None = None
    extras: str = "mujoco,tune,ray"
    setup: tuple[str, ...] = ()

    shares_files = False

    @abstractmethod
    def provider(self) -> dict[str, Any]:
        """Return who rents the machines out, and where."""

    @abstractmethod
    def node(self) -> dict[str, Any]:
        """Return what a machine is."""

    def plan(self, order: Order) -> Plan:
        """Return the cluster file and what is said to Ray."""
        self._check(order)
        order = on_ray(order) if self.nodes > 1 else order
        place = posixpath.normpath(check_directory("--dir", self.directory or _copy(order)))
        file, python = order.file(CLUSTER), f"{VENV}/bin/python"
        begin = _exec(file, place, on_machine(python, order))
        away, here = f"{place}/{order.results}/", f"{order.results}/"
        fetch = [["mkdir", "-p", here], ["ray", "rsync-down", file, away, here]]
        asked = {verb: lab(python, ("launch", *words, order.name)) for verb, words in ON_MACHINE.items()}
        make, bring_back = _make(file, place, order), _bring_back(file, place, order)
        return Plan(
            files={CLUSTER: yaml.safe_dump(self.cluster(order), sort_keys=False)},
            commands={
                "start": [*make, *(bring_back if order.resumed else []), begin],
                "up": [*make, *bring_back, begin],
                **{verb: [_exec(file, place, line)] for verb, line in asked.items()},
                "pull": fetch,
                # The disks go with the machines: what is on them comes here first.
                "down": [_exec(file, place, asked["down"]), *fetch, ["ray", "down", "-y", file]],
                "abandon": [["ray", "down", "-y", file]],  # a start that failed half way may have made machines
            },
        )

    def cluster(self, order: Order) -> dict[str, Any]:
        """Return the cluster file's content."""
        kinds: dict[str, Any] = {"head": {"node_config": self.node(), "resources": {}}}
        if self.nodes > 1:
            count = self.nodes - 1
            worker = {"node_config": self.node(), "resources": {}, "min_workers": count, "max_workers": count}
            kinds["worker"] = worker
        start = f"{VENV}/bin/ray start"
        return {
            "cluster_name": order.name,
            "max_workers": self.nodes - 1,
            "provider": {**self.provider(), "cache_stopped_nodes": False},
            "auth": {"ssh_user": self.user},
            "available_node_types": kinds,
            "head_node_type": "head",
            "file_mounts": {_copy(order): str(order.project)},
            "rsync_exclude": [*NOT_SENT, f"/{order.results.split('/')[0]}", f"/{order.file('').split('/')[0]}"],
            "rsync_filter": [".gitignore"],
            "initialization_commands": list(PREPARE),
            "setup_commands": self._installation(order),
            "head_start_ray_commands": [
                f"{VENV}/bin/ray stop",
                f"{start} --head --port=6379 --dashboard-host=127.0.0.1 "
                "--autoscaling-config=~/ray_bootstrap_config.yaml",
            ],
            "worker_start_ray_commands": [f"{VENV}/bin/ray stop", f"{start} --address=$RAY_HEAD_IP:6379"],
        }

    def _installation(self, order: Order) -> list[str]:
        """Return the commands that install Ray, the lab where this is a checkout of it, and then what was asked for."""
        active = f". {VENV}/bin/activate && cd {_copy(order)} &&"
        packages = f"-c constraints.txt 'ray[default]' '.[{self.extras}]'"
        if not is_checkout(order.project):
            packages = f"'ray[default]=={RAY_VERSION}'"
        lines = (f"pip install -q {packages}", *self.setup)
        return [f"python3 -m venv {VENV}", *(f"{active} {line}" for line in lines)]

    def _check(self, order: Order) -> None:
        if not self.setup and not is_checkout(order.project):
            raise UsageError(
                f"--setup is missing: {order.project} is no checkout of the lab, so say how it is installed there"
            )
        if not re.fullmatch(r"[\w,-]+", self.extras):
            raise UsageError(f"--extras {self.extras!r} must be names of the lab's extras with commas between")
        if self.nodes > 1 and order.command not in SHARED_QUEUE:
            raise UsageError(
                f"--nodes {self.nodes}: lab {order.command} runs on one machine (sweep and tune on several)"
            )
        if self.nodes > 1 and (self.directory is None or not PurePosixPath(self.directory).is_absolute()):
            raise UsageError(
                f"--nodes {self.nodes}: --dir must be a path that all machines see; mount it there with --setup"
            )


def _copy(order: Order) -> str:
    """Return where Ray copies the project to, on every machine: before a setup could have mounted anything."""
    return f"~/rl-lab/{order.name}"


def is_checkout(project: Path) -> bool:
    """Return whether a directory is one of the lab's own code, from which it can be installed."""
    return (project / "constraints.txt").is_file()


def _make(file: str, place: str, order: Order) -> list[Command]:
    """Return the commands after which there are machines, and the project is in `place`."""
    make = ["ray", "up", "-y", file]
    if place == _copy(order):
        return [make]
    return [make, ["ray", "exec", file, f"mkdir -p {place} && rsync -a {_copy(order)}/ {place}/"]]


def _bring_back(file: str, place: str, order: Order) -> list[Command]:
    """Return the commands that send the runs to a machine which has none; what it has is newer and stays."""
    here, there = f"{order.results}/", order.results
    move = f"mkdir -p {there} && rmdir {there} && mv .returned {there}"  # all of it or nothing
    return [
        ["mkdir", "-p", here],
        _exec(file, place, "rm -rf .returned && mkdir .returned"),
        ["ray", "rsync-up", file, here, f"{place}/.returned/"],
        _exec(file, place, f'if [ -z "$(ls -A {there} 2>/dev/null)" ]; then {move}; fi && rm -rf .returned'),
    ]


def _exec(file: str, place: str, line: str) -> Command:
    return ["ray", "exec", file, f"cd {place} && {line}"]


@dataclass(frozen=True, kw_only=True)
class Gce(Cloud):
    """Google's machines.

    Attributes:
        project: Who pays.
        gpus: Of each machine.
        gpu_type: For instance nvidia-tesla-t4.
    """

    project: str
    gpus: int = 0
    gpu_type: str | None = None

    def provider(self) -> dict[str, Any]:
        """Return Google, and the zone."""
        region, dash, letter = self.zone.rpartition("-")
        if not dash or len(letter) != 1:
            raise UsageError(f"--zone {self.zone!r} must be a zone, such as us-central1-a")
        return {"type": "gcp", "region": region, "availability_zone": self.zone, "project_id": self.project}

    def node(self) -> dict[str, Any]:
        """Return a machine as Compute Engine's API describes it."""
        disk = {"sourceImage": self.image, "diskSizeGb": self.disk_gb}
        config: dict[str, Any] = {
            "machineType": self.machine,
            "disks": [{"boot": True, "autoDelete": True, "type": "PERSISTENT", "initializeParams": disk}],
        }
        if self.gpus:
            if self.image == NO_DRIVER:
                raise UsageError(f"--gpus {self.gpus}: --image is missing (one with a GPU driver)")
            if self.gpu_type is None:
                raise UsageError(f"--gpus {self.gpus}: --gpu-type is missing (for instance nvidia-tesla-t4)")
            config["guestAccelerators"] = [{"acceleratorType": self.gpu_type, "acceleratorCount": self.gpus}]
            config["scheduling"] = [{"onHostMaintenance": "TERMINATE"}]
        return config


@dataclass(frozen=True, kw_only=True)
class Ec2(Cloud):
    """Amazon's machines; the type says which GPUs they have."""

    def provider(self) -> dict[str, Any]:
        """Return Amazon, and the zone."""
        if not self.zone or not self.zone[-1].isalpha() or not self.zone[:-1].rpartition("-")[2].isdigit():
            raise UsageError(f"--zone {self.zone!r} must be an availability zone, such as us-west-2a")
        return {"type": "aws", "region": self.zone[:-1], "availability_zone": self.zone}

    def node(self) -> dict[str, Any]:
        """Return a machine as EC2's `run_instances` describes it."""
        disk = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": self.disk_gb, "VolumeType": "gp3"}}
        return {"InstanceType": self.machine, "ImageId": self.image, "BlockDeviceMappings": [disk]}
