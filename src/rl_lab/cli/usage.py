"""What a person typed wrong, in one line; the rest of the help is one option away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

UsageFault: Any = typer.BadParameter.__base__  # of whichever click typer brings
_ONLY_HELP = "NoArgsIsHelpError"  # its message is the whole help, which was printed


class Commands(typer.core.TyperGroup):
    """The commands of `lab`."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the options before the command's name."""
        with _one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's own options and run it."""
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except UsageFault as error:
        if type(error).__name__ == _ONLY_HELP:
            raise
        command = "lab" if error.ctx is None else error.ctx.command_path
        message = " ".join(error.format_message().split()).removesuffix(".").replace("Value error, ", "")
        if os.environ.get("RANK", "0") == "0":  # the other processes of a run were started with the same words
            print(f"error: {message} (see {command} --help)", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
