"""What is launched, and what a place makes of it: files, and the command lines that use them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rl_lab.core.errors import UsageError

Command = list[str]
GRACE_S = 120  # for a checkpoint, between the request to stop and the end
TAIL = 100  # lines of a log that are shown
RAY_VERSION = "2.60.0"  # of constraints.txt, which images are made with
_DIRECTORY = re.compile(r"(~/)?[\w./+@=-]+")
SHARED_QUEUE = ("sweep", "tune")  # commands of which several may work on one directory


@dataclass(frozen=True)
class Order:
    """Commands of the lab that make up one launch.

    Attributes:
        name: Of the launch, and of its job, cluster or pod.
        words: Behind `lab`, as they are given on another machine.
        tasks: The same as one command per run or sweep; given again, each goes on where it stopped.
        results: Where their runs lie.
        project: Directory that paths in the words start from.
        directory: Where files of the launch lie.
        resumed: The run that is gone on with.
    """

    name: str
    words: tuple[str, ...]
    tasks: tuple[tuple[str, ...], ...]
    results: str
    project: Path
    directory: Path
    resumed: str | None = None

    def file(self, name: str) -> str:
        """Return the path of a file of the launch, as commands name it that run in the project's directory."""
        return os.path.relpath(self.directory / name, self.project)

    @property
    def command(self) -> str:
        """Return which of the lab's commands it is."""
        return self.tasks[0][0]


@dataclass(frozen=True)
class Plan:
    """Files of a launch, and by verb the command lines that start it, look after it and end it.

    A verb that is missing is done on this machine, where log and runs then lie.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Sequence[Command]] = field(default_factory=dict)


class Place(Protocol):
    """Where commands can run."""

    @property
    def shares_files(self) -> bool:
        """Return whether it sees this machine's files under the same paths."""

    def plan(self, order: Order) -> Plan:
        """Return the files and command lines of a launch; what is wrong is one line."""


def lab(python: str, words: Sequence[str]) -> str:
    """Return a command of the lab as a shell reads it; `python` may be a path with a tilde."""
    return f"{python} -m rl_lab {shlex.join(words)}"


def check_directory(option: str, directory: str) -> str:
    """Return a path on another machine; one that two shells would read differently is refused."""
    if not _DIRECTORY.fullmatch(directory) or directory.startswith("-"):
        raise UsageError(f"{option} {directory!r} must be letters, digits or any of / . _ + @ = -, behind ~/ or not")
    return directory


def workers_of(place: str, order: Order, workers: int) -> int:
    """Return how many commands run at once: one per seed, or as many as are asked to share a sweep."""
    if workers > 1 and order.command not in SHARED_QUEUE:
        raise UsageError(f"{place} --workers {workers}: only lab sweep and lab tune are shared by several workers")
    return max(workers, len(order.tasks))


def choose_task(order: Order, python: str, variable: str, runner: str = "") -> list[str]:
    """Return the lines of a shell script that set `$@` to the task which a variable numbers."""
    lines = [f"set -- {runner or python + ' -m rl_lab'} {shlex.join(task)}" for task in order.tasks]
    if len(lines) == 1:
        return lines
    cases = [f"  {number}) {line} ;;" for number, line in enumerate(lines)]
    return [f'case "${variable}" in', *cases, "esac"]


def on_ray(order: Order) -> Order:
    """Return the order with sweeps that run where the Ray cluster has room."""
    if order.command not in SHARED_QUEUE or "--on" in order.words:
        return order
    words = (order.words[0], "--on", "ray", "--address", "auto", *order.words[1:])
    return replace(order, words=words, tasks=(words,))
