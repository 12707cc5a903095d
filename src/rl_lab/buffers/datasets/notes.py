"""What is known of an episode and never learned from: when each step was taken, and who watched.

Notes lie beside the episodes, one line of JSON each, because they are no function of the run: two runs that went the
same way have the same episodes to the bit, and other times. A line is written before its episode counts, so every
episode has its notes; a line without an episode is passed over, and removed by the next writer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_lab.buffers.datasets.files import append_line, commit_bytes
from rl_lab.buffers.datasets.format import DatasetError
from rl_lab.core.durable import reason

TIMES, OPERATORS = "times", "operators"  # seconds since 1970 after each step; [[from step, name], ...]
Notes = Mapping[str, Any]
_EPISODE = "episode"


def write_notes(path: Path, number: int, notes: Notes) -> None:
    """Add the notes of an episode that is about to be saved."""
    if notes:
        append_line(path, json.dumps({_EPISODE: number, **notes}).encode() + b"\n")


def read_notes(path: Path) -> dict[int, Notes]:
    """Return the notes by number of the episode; of two lines the later one counts, half a line was never promised."""
    found: dict[int, Notes] = {}
    for line in _lines(path):
        number, notes = _parse(path, line)
        found[number] = notes
    return found


def keep_notes(path: Path, count: int) -> None:
    """Forget the notes of all episodes but the first `count`."""
    if not path.exists():
        return
    kept = b"".join(line for line in _lines(path) if _parse(path, line)[0] < count)
    if kept != path.read_bytes():
        commit_bytes(path, kept)


def _lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {reason(error)}") from error
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def _parse(path: Path, line: bytes) -> tuple[int, Notes]:
    try:
        notes = json.loads(line)
        number = notes.pop(_EPISODE)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{path}: a line is not the notes of an episode") from error
    if type(number) is not int:
        raise DatasetError(f"{path}: episode is {number!r}, not a number")
    return number, notes
