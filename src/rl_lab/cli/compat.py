"""`lab compat COMMAND LINE`: what people type in the five systems, as the `lab` command that it is here."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import Debug
from rl_lab.cli.report import Reported
from rl_lab.cli.usage import UsageFault

if TYPE_CHECKING:
    from rl_lab.cli.shims.flags import Translation

# All behind the first word belongs to the other program, also what looks like an option.
SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def compat(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND LINE...",
            help="As in its manual: python scripts/play.py --exp_name ...",
            show_default=False,
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the lab command.")] = False,
    debug: Debug = False,
) -> None:
    """Run a command line of EngineAI, Softlearning, Hi-ORS, the mono-repo or RL Lab as the lab command that it is."""
    translation = _translated(words, debug)
    for note in translation.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(shlex.join(["lab", *translation.command]), err=not dry_run)
    if not dry_run:
        _lab().main(args=translation.command, prog_name="lab")


def run(words: list[str]) -> None:
    """Do what the program of the other system would do; `words` are those of its command line."""
    _lab().main(args=["compat", *words], prog_name="lab")


def softlearning() -> None:
    """Be the command `softlearning`."""
    run(["softlearning", *sys.argv[1:]])


def _lab() -> Any:
    from rl_lab.cli.main import app

    return typer.main.get_command(app)


def _translated(words: list[str], debug: bool) -> Translation:
    """Return the command; one that this lab does not have is refused, and so are options and keys that are missing."""
    with Reported(debug):
        from rl_lab.cli.shims.dispatch import translate

        translation = translate(words)
        read_command(translation.command)
        _check_keys(translation.command)
    return translation


def read_command(command: list[str]) -> Any:
    """Let the command line of `lab` read the words without running anything, and return its context."""
    from rl_lab.core.errors import UsageError

    group, path, left = _lab(), "lab", list(command)
    while isinstance(group, typer.core.TyperGroup):
        name = left.pop(0)
        if name not in group.commands:
            raise UsageError(
                f"`{path} {name}` is not in this version of the lab (there is: {', '.join(group.commands)})"
            )
        group, path = group.commands[name], f"{path} {name}"
    try:
        return group.make_context(path.rpartition(" ")[2], left)
    except UsageFault as error:
        raise UsageError(f"`{path}` of this version of the lab does not take that: {error.format_message()}") from error


def _check_keys(command: list[str]) -> None:
    """Refuse keys of blocks that are declared, where they are not."""
    from rl_lab.config.schema import BLOCKS
    from rl_lab.core.errors import UsageError

    for word in command:
        found = re.match(r"(\w+)\.(\w+)=", word)
        if found and found[1] in BLOCKS and found[2] not in (known := BLOCKS[found[1]].model_fields):
            raise UsageError(f"{word}: {found[1]} of this version of the lab has no {found[2]} ({', '.join(known)})")
