"""From the checkpoint layouts of older labs to today's: ordered pure functions, applied to what is read.

Nothing on the disk changes: a run of an older lab stays as that lab wrote it, and every later lab can read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Migration:
    """One step: returns the state tree in the next layout and leaves the one it is given alone."""

    change: Callable[[Any], Any]
    untranslated: str = ""  # parts that cannot be said in the next layout; without any the step is exact


def _same(state: Any) -> Any:
    return state


# MIGRATIONS[i] turns the state of a checkpoint of version i + 1 into that of version i + 2.
MIGRATIONS: tuple[Migration, ...] = (
    # Version 1 held a running episode as its actions, to be played again; today it is the simulator's own state, which
    # no function of the file alone can compute. Weights and optimisers are laid out as today, the rest is not taken.
    Migration(_same, untranslated="running episodes"),
)


def to_today(state: Any, version: int) -> Any:
    """Return a state of a version in today's layout, as far as it can be said there."""
    for step in MIGRATIONS[version - 1 :]:
        state = step.change(state)
    return state


def untranslated(version: int) -> str:
    """Return what of a checkpoint of a version has no counterpart today; nothing: it goes on to the bit."""
    return ", ".join(step.untranslated for step in MIGRATIONS[version - 1 :] if step.untranslated)
