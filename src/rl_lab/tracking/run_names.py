"""What runs under a root are called. A run is given by its place below the root, as text: there are thousands."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

from rl_lab.core.errors import unknown_name
from rl_lab.tracking.groups import TRIALS, names_of

_NAMED = 50  # runs that an error names


def is_member(run: str) -> bool:
    """Return whether a run belongs to a sweep or launch below the root; a root that is a sweep has its own trials."""
    return "/" in run.removeprefix(f"{TRIALS}/")


def is_called(run: str, identity: str, experiment: str, word: str) -> bool:
    """Return whether a word is the name of a run; that of its experiment means no trials, whose settings differ."""
    return word in (run, run.rpartition("/")[2], identity) or (word == experiment and not is_member(run))


def is_at(run: str, place: str | None) -> bool:
    """Return whether a run is at a path below the root, or inside of it."""
    return place is not None and (run == place or run.startswith(f"{place}/"))


def known_names(run: str, identity: str, experiment: str) -> list[str]:
    """Return all that a run, and what it is inside of, can be called by."""
    return [*names_of(run), identity, *([] if is_member(run) else [experiment])]


def place_of(root: Path, word: str) -> str | None:
    """Return where a path leads below the root; None for what is no path, or leads elsewhere."""
    return below(Path(os.path.abspath(root)), os.path.abspath(word)) if "/" in word else None


def below(root: Path, path: str) -> str | None:
    """Return what a path adds to the root."""
    start = f"{root}/"
    return path[len(start) :] if path.startswith(start) else None


def unknown_run(root: Path, word: str, names: Sequence[str], experiments: Collection[str]) -> str:
    """Return the message for a run that is not there; of many, only the nearest are named."""
    if word in experiments:  # else it would have been found
        return f"only sweeps and launches in {root} have runs of {word!r}: `lab runs list name={word}` shows them"
    if len(names) <= _NAMED:
        return unknown_name(f"run in {root}:", word, names)
    near = get_close_matches(word, names, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"unknown run in {root}: {word!r}{hint} (`lab runs list` shows all {len(names)})"
