"""Films of recorded episodes: one episode, or many side by side and faster than they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from rl_lab.buffers.datasets.format import Array, Episode, EpisodeReader
from rl_lab.buffers.datasets.summary import intervention_flags
from rl_lab.cli.data.choosing import cameras_of, reject_existing
from rl_lab.core.errors import UsageError, unknown_name
from rl_lab.tracking.film import FPS, Film

ORANGE = np.array([255, 140, 0], np.uint8)  # the frame around a picture while somebody else acts


def film_episodes(
    reader: EpisodeReader,
    numbers: Sequence[int],
    target: Path,
    *,
    camera: str | None,
    columns: int = 1,
    every: int = 1,
    speed: float = 1.0,
) -> Path:
    """Write a film of `columns` episodes at a time, of every so many steps, and return its path."""
    rate = (reader.steps_per_second or FPS) * speed / every
    film = Film(without_ending(target), min(rate, 60.0))
    reject_existing(film.path)
    try:
        for begin in range(0, len(numbers), columns):
            shown = [_frames(reader.read(number), camera, every) for number in numbers[begin : begin + columns]]
            for picture in _side_by_side(shown, columns):
                film.add(torch.from_numpy(picture))
        path = film.close()
    finally:
        film.drop()
    if path is None:
        raise UsageError(f"{reader.path} has no episodes to film")
    return path


def without_ending(target: Path) -> Path:
    """Return where a film goes: its ending is that of what can be written here."""
    return target.with_suffix("") if target.suffix in (".mp4", ".png") else target


def _frames(episode: Episode, camera: str | None, every: int) -> Array:
    """Return the pictures [T, H, W, 3], framed where somebody else acted; all cameras side by side without a name."""
    cameras = cameras_of(episode)
    if not cameras:
        raise UsageError("the episodes have no pictures: there is nothing to film")
    if camera is not None and camera not in cameras:
        raise UsageError(unknown_name("--camera", camera, cameras))
    chosen = [cameras[camera]] if camera is not None else list(cameras.values())
    height = max(array.shape[2] for array in chosen)
    views = [_colour(_padded(array[::every], height)) for array in chosen]
    frames = np.concatenate(views, axis=2)
    _frame(frames, intervention_flags(episode)[::every])
    return frames


def _colour(pictures: Array) -> Array:
    """Return pictures [T, C, H, W] as [T, H, W, 3]."""
    colours = np.repeat(pictures, 3, axis=1) if pictures.shape[1] == 1 else pictures[:, :3]
    return np.ascontiguousarray(colours.transpose(0, 2, 3, 1))


def _padded(pictures: Array, height: int) -> Array:
    return np.pad(pictures, ((0, 0), (0, 0), (0, height - pictures.shape[2]), (0, 0)))


def _frame(frames: Array, flags: Array) -> None:
    """Draw a frame around those pictures whose flag is set."""
    width = max(1, frames.shape[1] // 32)
    for edge in (np.s_[:, :width], np.s_[:, -width:], np.s_[:, :, :width], np.s_[:, :, -width:]):
        part = frames[edge]
        part[flags] = ORANGE


def _side_by_side(episodes: Sequence[Array], columns: int) -> Iterator[Array]:
    """Yield the pictures of a row of episodes; one that is over shows its last picture, an empty place is black."""
    shape = episodes[0].shape[1:]
    for step in range(max(len(frames) for frames in episodes)):
        row = [frames[min(step, len(frames) - 1)] for frames in episodes]
        row += [np.zeros(shape, np.uint8)] * (columns - len(row))
        yield np.concatenate(row, axis=1)
