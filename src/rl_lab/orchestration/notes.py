"""Who watched a step and when it was taken, on the way from an actor to the learner beside what is learned from.

They travel in the step itself, so they are as durable as it is: spooled, logged, acknowledged and read again after a
kill. In one process there is no way to go, and nothing that depends on the time enters a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.core.buffer import Witness
from rl_lab.core.operator import MAX_NAME_BYTES
from rl_lab.orchestration.supervision import OPERATOR

WATCHER, TAKEN_AT = "watcher", "taken_at"  # of a step as it is sent
_LAST_S = 253_402_300_799.0  # of the year 9999, after which there is no date


class Note(NamedTuple):
    """What is known of a step beside what is learned from."""

    actor: str
    watcher: str  # empty: nobody
    acting: str  # who of them acted; empty: the policy
    taken_at: float  # seconds since 1970 at the end of the step


def packed_note(step: Mapping[str, Any], seen: Witness | None) -> dict[str, Tensor]:
    """Return what is sent beside a step [1, ...]; a name where there is an operator to have one."""
    times, name = ((0.0,), None) if seen is None else seen
    sent = {TAKEN_AT: torch.tensor(times, dtype=torch.float64)}
    if OPERATOR in step.get("infos", {}):
        letters = (name or "").encode().ljust(MAX_NAME_BYTES, b"\0")
        sent[WATCHER] = torch.frombuffer(bytearray(letters), dtype=torch.uint8)[None]
    return sent


def unpacked_note(actor: str, step: Mapping[str, Any]) -> Note | None:
    """Return the note of a step that came, if it has one; a peer's letters and numbers are not trusted."""
    if TAKEN_AT not in step:
        return None
    watcher = _name(step[WATCHER]) if WATCHER in step else ""
    is_acting = bool(watcher) and float(step["infos"][OPERATOR]) > 0.0
    seconds = float(step[TAKEN_AT])
    return Note(actor, watcher, watcher if is_acting else "", seconds if 0.0 <= seconds <= _LAST_S else 0.0)


def witness_of(notes: list[Note]) -> Witness:
    """Return when the steps of these notes were taken; all have the same watcher."""
    return Witness(tuple(note.taken_at for note in notes), notes[0].watcher or None)


def _name(letters: Tensor) -> str:
    text = letters.numpy().tobytes().rstrip(b"\0").decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
