"""Steps of several actors as one column of a buffer, in which episodes follow one another.

An actor that was restarted, or lost its files, begins anew in the middle of an episode: its last step is then marked
truncated, so that what was recorded is learned from and nothing is joined that did not follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from rl_lab.core.trees import Tree
from rl_lab.distributed.transport.interface import Received
from rl_lab.orchestration.notes import TAKEN_AT, WATCHER, Note, unpacked_note

PHASE = "phase"  # of a step as it is sent: the number of the phase in which it was recorded


class Row(NamedTuple):
    """A step, the phase it was recorded in, and who and when."""

    phase: int
    step: dict[str, Tree]
    note: Note | None = None  # None: the actor is in this process


class ActorStreams:
    """Sorts what arrives into episodes.

    Args:
        whole_episodes: Let an episode through when it has ended, because several actors play at the same time; else
            every step but the newest, of which it is not known yet whether it was the last one before a restart.
    """

    def __init__(self, *, whole_episodes: bool) -> None:
        self._whole_episodes = whole_episodes
        self._open: dict[str, list[Row]] = {}  # of each stream, what has not been let through
        self._ready: deque[Row] = deque()
        self.taken: dict[str, int] = {}  # of each stream, the number of the next step
        self.num_cut = 0  # episodes that ended because an actor began anew

    def add(self, received: Received) -> None:
        """Take the next step of the log."""
        actor, run, seq, step = received
        stream = name_of(actor, run)
        self.taken[stream] = seq + 1
        learned = {key: part for key, part in step.items() if key not in (PHASE, WATCHER, TAKEN_AT)}
        row = Row(int(step[PHASE]), learned, unpacked_note(actor, step))
        for other in [key for key in self._open if self._is_over(key, stream, actor)]:
            self._cut(other)
        if bool(row.step["is_first"]):
            self._cut(stream)
        elif stream not in self._open:  # the log begins here, or another actor's step has cut the episode
            row.step["is_first"] = torch.ones_like(row.step["is_first"])
        rows = self._open.setdefault(stream, [])
        rows.append(row)
        if bool(row.step["terminated"] | row.step["truncated"]):
            self._ready.extend(self._open.pop(stream))
        elif not self._whole_episodes:
            self._ready.extend(rows[:-1])
            del rows[:-1]

    def next(self) -> Row | None:
        """Return the row that comes next, if there is one, and leave it."""
        return self._ready[0] if self._ready else None

    def take(self) -> Row:
        """Return the row that comes next, and go on to the one after it."""
        return self._ready.popleft()

    def cut(self) -> None:
        """Let all steps through that are here, episodes cut where they are: nothing more comes."""
        for stream in list(self._open):
            self._cut(stream)

    def get_state(self) -> dict[str, Any]:
        """Return all steps that have not been taken."""
        return {
            "open": {stream: [_packed(row) for row in rows] for stream, rows in self._open.items()},
            "ready": [_packed(row) for row in self._ready],
            "taken": dict(self.taken),
            "num_cut": self.num_cut,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Hold the steps of `state`."""
        self._open = {stream: [_unpacked(row) for row in rows] for stream, rows in state["open"].items()}
        self._ready = deque(_unpacked(row) for row in state["ready"])
        self.taken, self.num_cut = dict(state["taken"]), state["num_cut"]

    def _is_over(self, other: str, stream: str, actor: str) -> bool:
        """Return whether a step of `stream` says that nothing will follow in the episode of another one."""
        return other != stream and (not self._whole_episodes or other.startswith(f"{actor}/"))

    def _cut(self, stream: str) -> None:
        rows = self._open.pop(stream, [])
        if rows:
            rows[-1].step["truncated"] = torch.ones_like(rows[-1].step["truncated"])
            self._ready.extend(rows)
            self.num_cut += 1


def name_of(actor: str, run: str) -> str:
    """Return the name of a stream: the steps of one run of one actor."""
    return f"{actor}/{run}"


def _packed(row: Row) -> dict[str, Any]:
    note = {} if row.note is None else {"note": list(row.note)}
    return {"phase": row.phase, "step": row.step, **note}


def _unpacked(row: Mapping[str, Any]) -> Row:
    return Row(row["phase"], row["step"], Note(*row["note"]) if "note" in row else None)
