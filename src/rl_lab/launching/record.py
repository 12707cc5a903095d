"""The directory of a launch: what was launched, with which files and command lines. It is written once."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl_lab.core.durable import fsync_directory, reason
from rl_lab.core.errors import LabError, UsageError, unknown_name
from rl_lab.launching.order import Command, Order, Plan
from rl_lab.tracking.atomic import replace_file, temporary_sibling, write_durable

RECORD = "launch.yaml"
STARTED = "started"
LOG = "job.log"
SCHEMA_VERSION = 1
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")  # what Kubernetes, clouds and Slurm all accept


class LaunchError(LabError):
    """A launch is missing, damaged, or one of its commands has failed."""


@dataclass(frozen=True)
class Launch:
    """A launch on disk."""

    path: Path
    name: str
    place: str
    created: str
    project: Path
    results: str
    words: tuple[str, ...]
    tasks: tuple[tuple[str, ...], ...]
    commands: Mapping[str, Sequence[Command]]

    def is_started(self) -> bool:
        """Return whether all its start commands have succeeded."""
        return (self.path / STARTED).is_file()

    def set_started(self) -> None:
        """Note that they have."""
        replace_file(self.path / STARTED, time.strftime("%Y-%m-%dT%H:%M:%S%z\n"))


def check_name(name: str) -> str:
    """Return a launch's name if all places can use it."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} must be 1 to 50 small letters, digits or -, with no - at its ends")
    return name


def new_name(of: str) -> str:
    """Return a name that no other launch has."""
    short = re.sub(r"[^a-z0-9]+", "-", of.lower()).strip("-")[:30].rstrip("-") or "launch"
    return f"{short}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def create(root: Path, place: str, order: Order, plan: Plan) -> Launch:
    """Write a launch in one step; a name that is taken is refused."""
    path, record = root / order.name, _record(place, order, plan)
    if path.exists():
        raise taken(order.name, root)
    unfinished = temporary_sibling(path)
    try:
        unfinished.mkdir(parents=True)
        for name, text in plan.files.items():
            write_durable(unfinished / name, text.encode())
        write_durable(unfinished / RECORD, record.encode())
        os.rename(unfinished, path)  # refused where another launch of this name has come to lie meanwhile
        fsync_directory(root)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if path.exists():
            raise taken(order.name, root) from error
        raise LaunchError(f"cannot write {path}: {reason(error)}") from error
    return read(root, order.name)


def taken(name: str, root: Path) -> UsageError:
    """Return the refusal of a name."""
    return UsageError(f"--name {name} is taken ({root / name}): `lab launch up {name}` goes on with it")


def _record(place: str, order: Order, plan: Plan) -> str:
    lines = {verb: [shlex.join(command) for command in commands] for verb, commands in plan.commands.items()}
    content = {
        "schema_version": SCHEMA_VERSION,
        "name": order.name,
        "place": place,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "project": str(order.project),
        "results": order.results,
        "words": shlex.join(order.words),
        "tasks": [shlex.join(task) for task in order.tasks],
        "commands": lines,
    }
    return yaml.safe_dump(content, sort_keys=False, width=10_000, allow_unicode=True)


def read(root: Path, name: str) -> Launch:
    """Return a launch by its name."""
    path = root / name
    if not (path / RECORD).is_file():
        raise UsageError(unknown_name(f"launch in {root}:", name, names(root)))
    try:
        content: Any = yaml.safe_load((path / RECORD).read_text())
        version = content["schema_version"]
        if version > SCHEMA_VERSION:
            raise LaunchError(f"{path / RECORD} has schema_version {version}; this lab reads up to {SCHEMA_VERSION}")
        lines = content["commands"].items()
        return Launch(
            path=path.absolute(),
            name=content["name"],
            place=content["place"],
            created=content["created"],
            project=Path(content["project"]),
            results=content["results"],
            words=tuple(shlex.split(content["words"])),
            tasks=tuple(tuple(shlex.split(line)) for line in content["tasks"]),
            commands={verb: [shlex.split(line) for line in commands] for verb, commands in lines},
        )
    except OSError as error:
        raise LaunchError(f"cannot read {path / RECORD}: {reason(error)}") from error
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise LaunchError(f"{path / RECORD} is damaged: it is no record of a launch") from error


def names(root: Path) -> list[str]:
    """Return the names of all launches, oldest first."""
    found = [path for path in root.iterdir() if (path / RECORD).is_file()] if root.is_dir() else []
    return [path.name for path in sorted(found, key=lambda path: ((path / RECORD).stat().st_mtime_ns, path.name))]
