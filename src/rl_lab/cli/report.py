"""How a command ends: exit codes, and errors as one line."""

from __future__ import annotations

import os
import select
import sys
import traceback
from types import TracebackType
from typing import TextIO

import typer


class Reported:
    """Turns what a command raises into its exit code: 1 failed, 2 wrong usage, 130 and 143 interrupted.

    An error that a user can mend is one line on stderr; any other is one line too, and `--debug` shows where it arose.
    """

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug

    def __enter__(self) -> Reported:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if (error is None or isinstance(error, BrokenPipeError)) and _is_unread(error):
            raise SystemExit(1) from None
        if error is None or isinstance(error, SystemExit | typer.Exit):
            return
        from rl_lab.core.errors import LabError, PeerLost, UsageError
        from rl_lab.orchestration.signals import Interrupted

        if os.environ.get("RANK", "0") != "0" and isinstance(error, UsageError | PeerLost | Interrupted):
            raise SystemExit(error.exit_code) from None  # the first process of the run says the same, or knows why
        if self._debug and not isinstance(error, Interrupted):
            traceback.print_exception(error)
        if isinstance(error, Interrupted):
            self._leave(f"{error}; continue with `lab resume`", error.exit_code)
        elif isinstance(error, KeyboardInterrupt):
            self._leave("interrupted", 130)
        elif isinstance(error, LabError):
            self._leave(f"error: {' '.join(str(error).split())}", error.exit_code)
        else:
            text = " ".join(str(error).split()) or "no message"
            self._leave(f"error: {type(error).__name__}: {text} (--debug shows where)", 1)

    def _leave(self, line: str, code: int) -> None:
        rank = os.environ.get("RANK", "0")
        print(line if rank == "0" else f"rank {rank}: {line}", file=sys.stderr)
        raise SystemExit(code) from None


def _is_unread(error: BrokenPipeError | None) -> bool:
    """Return whether whoever read what was printed has left, as `lab list | head` does; nothing is printed then."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        is_unread = True
    else:  # without a buffer nothing is left to be written again
        is_unread = error is not None and _has_no_reader(sys.stdout)
    if is_unread:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_unread


def _has_no_reader(stream: TextIO) -> bool:
    try:
        ends = select.poll()
        ends.register(stream.fileno(), 0)
    except (AttributeError, OSError):  # a system without it, or a stream that is no file
        return False
    return bool(ends.poll(0))
