"""Films of a folder one behind another, such as those of a training, in one film."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from rl_lab.cli.data.choosing import reject_existing
from rl_lab.cli.data.films import without_ending
from rl_lab.core.errors import UsageError
from rl_lab.tracking.film import Film, resized


def splice_films(folder: Path, target: Path, fps: float) -> tuple[Path, int]:
    """Write all mp4 files of a folder, by name and number, as one film of the first one's size; return how many."""
    from rl_lab.buffers.datasets.video_file import decode_video

    sources = sorted(folder.glob("*.mp4"), key=_by_number)
    if not sources:
        raise UsageError(f"{folder} has no films (*.mp4)")
    film, size = Film(without_ending(target), fps), None
    reject_existing(film.path)
    try:
        for source in sources:
            for frame in decode_video(source):
                picture = torch.from_numpy(frame)  # [H, W, 3]
                size = size or picture.shape
                film.add(picture if picture.shape == size else resized(picture, size[1], size[0]))
        path = film.close()
    finally:
        film.drop()
    if path is None:
        raise UsageError(f"the films of {folder} have no pictures")
    return path, len(sources)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a key by which `step_10` comes behind `step_9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
