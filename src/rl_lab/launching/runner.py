"""Runs the command lines of a launch, and says in one line what went wrong with one."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence

from rl_lab.launching.order import Command
from rl_lab.launching.record import Launch, LaunchError

Tell = Callable[[str], None]
_SSH_FAILED = 255
_VANISHED = 24  # of rsync: a file was gone before it was copied, as in a run that goes on


def run(launch: Launch, verb: str, tell: Tell) -> None:
    """Run the commands of a verb in the project's directory, and show their output line by line."""
    if not launch.project.is_dir():
        raise LaunchError(f"{launch.project}, where launch {launch.name} was made, is not there any more")
    for command in launch.commands[verb]:
        _run(launch, command, tell)


def _run(launch: Launch, command: Command, tell: Tell) -> None:
    last = ""
    try:
        with subprocess.Popen(
            command,
            cwd=launch.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                tell(line.rstrip("\n"))
                last = line.strip() or last
    except FileNotFoundError as error:
        raise LaunchError(f"`{command[0]}` is not on this machine; it is needed for: {shlex.join(command)}") from error
    code = process.returncode
    if code != 0 and not (command[0] == "rsync" and code == _VANISHED):
        raise LaunchError(f"{_what(command, code)}: {last or 'it said nothing'} (command: {shlex.join(command)})")


def _what(command: Sequence[str], code: int) -> str:
    if command[0] in ("ssh", "rsync") and code == _SSH_FAILED:
        return "the host cannot be reached"
    return f"`{command[0]}` failed with code {code}"
