"""Errors a user can mend: one line that names the key, what was wrong and the valid choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_ALL_LISTED, _FEW = 40, 6  # so many choices are listed in full; of more than that, the nearest few


class LabError(ValueError):
    """A failed run (exit code 1). The message is one line and is shown without a traceback."""

    exit_code = 1


class UsageError(LabError):
    """A wrong command line or config (exit code 2)."""

    exit_code = 2


class ConfigError(UsageError):
    """The composed config is not valid."""


class EnvironmentFault(LabError):
    """An environment raised, or returned something that its spec does not allow."""


class CheckpointError(LabError):
    """A checkpoint is missing, damaged, foreign or does not fit this run."""


class RunDirectoryError(LabError):
    """A run directory is missing, foreign, locked or not writable."""


class NotFiniteError(LabError):
    """Something that a run learns from or by is NaN or infinite; the message names it."""


class NotFiniteAction(NotFiniteError):
    """An action is NaN or infinite, most often because something that was learned is."""


class PeerLost(LabError):
    """Another process of the run has ended or cannot be reached; its own message says why."""


def unknown_name(kind: str, name: object, choices: Iterable[object], more: str = "") -> str:
    """Return a message that says `name` is unknown and lists the choices, the nearest one first.

    Of very many choices only the nearest are listed; `more` says where all of them are.
    """
    known = sorted(str(choice) for choice in choices)
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {str(name)!r}{hint} (choices: {enumerated(known, str(name), more) or 'none'})"


def enumerated(known: Sequence[str], name: str = "", more: str = "") -> str:
    """Return names with commas between; of very many only those nearest to `name`, and how many more there are."""
    if len(known) <= _ALL_LISTED:
        return ", ".join(known)
    few = get_close_matches(name, known, n=_FEW, cutoff=0.3) or list(known[:_FEW])
    return f"{', '.join(few)} and {len(known) - len(few):,} more{f': {more}' if more else ''}"


def check_choice(kind: str, value: object, choices: Iterable[object]) -> None:
    """Raise when an option is not one of its choices."""
    known = list(choices)
    if value not in known:
        raise ConfigError(unknown_name(kind, value, known))
