"""What a dataset holds, told in numbers: its fields, its episodes, who acted in them and what was said of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.format import Array, Episode, EpisodeReader
from rl_lab.buffers.datasets.notes import OPERATORS, TIMES
from rl_lab.buffers.datasets.open import MARKS

INTERVENTION, VERDICT, SUCCESS, OPERATOR = "is_intervention", "verdict", "is_success", "operator"
_WORDS = {1.0: "success", -1.0: "failure", 0.0: "undecided"}


def find_datasets(root: Path) -> list[Path]:
    """Return the directories below `root` that hold a dataset, in order; nothing is looked for within one."""
    found = []
    for folder, names, _ in os.walk(root):
        names.sort()
        if any((Path(folder) / mark).is_file() for marks in MARKS.values() for mark in marks[:1]):
            found.append(Path(folder))
            names.clear()
    return found


def summarize(reader: EpisodeReader) -> dict[str, Any]:
    """Return what the dataset is, as a tree for JSON; one episode is read for it."""
    fields = reader.read(0).fields() if reader.lengths else {}
    return {
        "path": str(reader.path),
        "format": reader.format,
        "robot": reader.robot,
        "steps_per_second": reader.steps_per_second,
        "episodes": len(reader.lengths),
        "steps": sum(reader.lengths),
        "fields": {name: {"dtype": field.dtype, "shape": list(field.shape)} for name, field in fields.items()},
    }


def summarize_episodes(reader: EpisodeReader, numbers: list[int]) -> Iterator[dict[str, Any]]:
    """Yield a row of each episode; pictures are not decoded for it where files allow that."""
    for number in numbers:
        yield {"episode": number, **summarize_episode(reader.glance(number))}


def summarize_episode(episode: Episode) -> dict[str, Any]:
    """Return length, return, end, interventions, verdict, task, operators and beginning of an episode."""
    flags = intervention_flags(episode)
    return {
        "steps": len(episode),
        "return": float(episode.rewards.sum(dtype=np.float64)),
        "end": "terminated" if episode.terminated else "truncated",
        "verdict": verdict_of(episode),
        "interventions": int(flags.sum()),
        "takeovers": len(segments(flags)),
        "operators": operators_of(episode),
        "began": began(episode.notes),
        "task": episode.task,
    }


def operators_of(episode: Episode) -> list[str]:
    """Return who watched; where only their numbers are known, those of who acted (`#7`)."""
    if OPERATORS in episode.notes:
        return list(dict.fromkeys(name for _, name in episode.notes[OPERATORS]))
    numbers = np.asarray(episode.infos.get(OPERATOR, ())).reshape(-1)
    return [f"#{int(number)}" for number in dict.fromkeys(numbers.tolist()) if number > 0]


def intervention_flags(episode: Episode) -> Array:
    """Return in which steps somebody else acted than the policy, [T] bool."""
    flags = episode.infos.get(INTERVENTION)
    return np.zeros(len(episode), np.bool_) if flags is None else np.asarray(flags).reshape(len(episode)) > 0


def segments(flags: Array) -> list[tuple[int, int]]:
    """Return the (first, past the last) of each run of true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]


def verdict_of(episode: Episode) -> str | None:
    """Return what was said of an episode at its end; None: nothing was."""
    if VERDICT in episode.infos:
        return _WORDS.get(float(np.sign(np.asarray(episode.infos[VERDICT]).reshape(-1)[-1])))
    if SUCCESS in episode.infos:
        return _WORDS[1.0 if np.asarray(episode.infos[SUCCESS]).reshape(-1)[-1] > 0 else -1.0]
    return None


def began(notes: Mapping[str, Any]) -> str | None:
    """Return when the first step was taken whose time is known, UTC."""
    seconds = next((second for second in notes.get(TIMES, []) if second is not None), None)
    return None if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
