"""Tags and the pin of a run: what people say about it afterwards, in a small file of its directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rl_lab.core.errors import RunDirectoryError, UsageError
from rl_lab.tracking.lock import exclusive_lock
from rl_lab.tracking.run_directory import RunDirectory

LABELS = "labels.json"
_LOCK = "labels.lock"
_WAIT_S = 10.0  # for another who labels the run, or cleans it
_TAG = re.compile(r"[\w.+@:-]{1,60}")


@dataclass(frozen=True)
class Labels:
    """What people say about a run; a pinned one is never cleaned."""

    tags: tuple[str, ...] = ()
    pinned: bool = False


def read_labels(run: RunDirectory, config_tags: Iterable[str] = ()) -> Labels:
    """Return the labels; a run that nobody labelled has the tags of its config. A damaged file counts as none."""
    file = run.path / LABELS
    try:
        content: Any = json.loads(file.read_text())
    except (OSError, ValueError):
        return Labels(tuple(sorted({*config_tags})))
    if not isinstance(content, dict):
        return Labels(tuple(sorted({*config_tags})))
    tags = content.get("tags")
    known = tags if isinstance(tags, list) else config_tags
    return Labels(tuple(sorted({str(tag) for tag in known})), content.get("pinned") is True)


@contextmanager
def labels_lock(run: RunDirectory) -> Iterator[None]:
    """Keep others from labelling the run; the run's own lock will not do, for a running one is labelled too."""
    with exclusive_lock(run.path / _LOCK, _WAIT_S):
        yield


def write_labels(
    run: RunDirectory,
    config_tags: Iterable[str] = (),
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    pinned: bool | None = None,
) -> Labels:
    """Change tags and pin, and return what they are now; one at a time, so that none is lost."""
    for tag in add:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"tag {tag!r} must be 1 to 60 letters, digits or any of _ . + @ : -")
    if not run.path.is_dir():
        raise RunDirectoryError(f"no run directory at {run.path}")
    with labels_lock(run):
        now = read_labels(run, config_tags)
        if missing := [tag for tag in remove if tag not in now.tags]:
            raise UsageError(f"{run.path.name} has no tag {missing[0]!r} (it has: {', '.join(now.tags) or 'none'})")
        labels = Labels(tuple(sorted({*now.tags, *add} - {*remove})), now.pinned if pinned is None else pinned)
        run.write_text(LABELS, json.dumps({"tags": list(labels.tags), "pinned": labels.pinned}, indent=1) + "\n")
    return labels
