"""Environments are foreign code, which may raise anything; a run answers with one line that says who and when."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Watch:
    """Turns every error raised inside its block into the one that `describe` makes of it; interrupts pass."""

    def __init__(self, describe: Callable[[Exception], Exception]) -> None:
        self._describe = describe

    def __enter__(self) -> None:
        """Begin to watch."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception):
            raise self._describe(error) from error


class BadOutcome(ValueError):
    """Foreign code returned what it may not; the message is a sentence without its subject."""


def one_line(error: Exception) -> str:
    """Return what happened, as the rest of a sentence on one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, BadOutcome) else f"raised {type(error).__name__}: {text}"
