"""What is wrong with a dataset, one line each: damaged episodes, clocks that jump, late steps, stuck cameras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rl_lab.buffers.datasets.format import Array, DatasetError, Episode, EpisodeReader, Field, named
from rl_lab.buffers.datasets.notes import TIMES

LATE = 1.5  # control steps between two times: more are steps that were dropped
JUMP_S = 10.0  # no step takes so long; a clock was set
STUCK = 3  # pictures in a row that are the same while the robot moves


class Fault(NamedTuple):
    """One finding."""

    episode: int
    text: str
    is_damage: bool  # the episode cannot be read


def find_faults(reader: EpisodeReader) -> Iterator[Fault]:
    """Read all episodes and yield what is wrong with them."""
    for number in range(len(reader.lengths)):
        try:
            episode = reader.read(number)
        except DatasetError as error:
            yield Fault(number, str(error), True)
            continue
        texts = [*_numbers(episode), *_clock(episode, reader.steps_per_second), *_cameras(episode)]
        yield from (Fault(number, text, False) for text in texts)


def _numbers(episode: Episode) -> Iterator[str]:
    for name, array in episode.arrays().items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            step = int((~np.isfinite(array.reshape(len(episode), -1))).any(1).argmax())
            yield f"{name} is not finite at step {step}"


def _clock(episode: Episode, rate: float | None) -> Iterator[str]:
    """Yield where the times of steps go back, leap, or leave out steps."""
    times = np.array([np.nan if t is None else t for t in episode.notes.get(TIMES, [])], np.float64)
    if len(times) not in (0, len(episode)):
        yield f"times has {len(times)} entries for {len(episode)} steps"
    waits = np.diff(times)
    for step in np.flatnonzero(waits < 0):
        yield f"the clock goes back by {-waits[step]:.3f} s at step {step + 1}"
    for step in np.flatnonzero(waits > JUMP_S):
        yield f"the clock jumps by {waits[step]:.1f} s at step {step + 1}"
    if rate is not None and (late := np.flatnonzero((waits > LATE / rate) & (waits <= JUMP_S))).size:
        yield (
            f"{late.size} of {len(episode)} steps came late, by up to {waits[late].max():.3f} s instead of "
            f"{1 / rate:.3f} s (first: step {late[0] + 1})"
        )


def _cameras(episode: Episode) -> Iterator[str]:
    """Yield cameras that show the same picture again and again while other numbers change."""
    observations = named(episode.observations)
    pictures = {name: a for name, a in observations.items() if Field(str(a.dtype), a.shape[1:]).is_image}
    numbers = [a.reshape(len(episode), -1) for name, a in observations.items() if name not in pictures]
    if not pictures or not numbers or len(episode) < 2:
        return
    moves = np.any([(array[1:] != array[:-1]).any(1) for array in numbers], axis=0)
    for name, frames in pictures.items():
        same = (frames[1:] == frames[:-1]).reshape(len(episode) - 1, -1).all(1) & moves
        if (longest := _longest(same)) >= STUCK:
            yield f"{name} shows the same picture for {longest + 1} steps while the robot moves: frames were dropped"


def _longest(flags: Array) -> int:
    longest = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        longest = max(longest, run)
    return longest
