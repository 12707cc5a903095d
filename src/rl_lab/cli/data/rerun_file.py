"""Episodes as a recording of Rerun (.rrd), for its viewer: pictures, numbers, who acted and when."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.files import UNFINISHED
from rl_lab.buffers.datasets.format import Episode, EpisodeReader, Field
from rl_lab.buffers.datasets.notes import TIMES
from rl_lab.cli.data.choosing import cameras_of
from rl_lab.core.errors import ConfigError

try:
    import rerun
except ModuleNotFoundError as error:
    raise ConfigError("rerun is not installed: pip install 'rl-lab[rerun]'") from error

QUALITY = 85  # of JPEG pictures


def write_rerun(reader: EpisodeReader, numbers: Sequence[int], target: Path) -> int:
    """Write the file, one branch `episode_N` for each episode, and return its bytes."""
    unfinished = target.with_name(f"{UNFINISHED}{target.name}")
    try:
        with rerun.RecordingStream("rl_lab") as stream:
            stream.save(unfinished)
            for number in numbers:
                _log(stream, f"episode_{number}", reader.read(number), reader.steps_per_second)
            stream.flush()
            stream.disconnect()
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target.stat().st_size


def _log(stream: Any, branch: str, episode: Episode, rate: float | None) -> None:
    times = episode.notes.get(TIMES, [None] * len(episode))
    numbers = {
        name: array.reshape(len(episode), -1) for name, array in episode.arrays().items() if not _is_image(array)
    }
    cameras = cameras_of(episode)
    if episode.task is not None:
        stream.log(f"{branch}/task", rerun.TextDocument(episode.task), static=True)
    for step in range(len(episode)):
        stream.set_time("step", sequence=step)
        if rate is not None:
            stream.set_time("time", duration=step / rate)
        if times[step] is not None:
            stream.set_time("wall_clock", timestamp=times[step])
        for name, rows in numbers.items():
            stream.log(f"{branch}/{name}", rerun.Scalars(rows[step].astype(np.float64)))
        for name, frames in cameras.items():
            picture = frames[step]
            pixels = picture[0] if len(picture) == 1 else np.ascontiguousarray(picture[:3].transpose(1, 2, 0))
            stream.log(f"{branch}/cameras/{name}", rerun.Image(pixels).compress(jpeg_quality=QUALITY))
    stream.reset_time()


def _is_image(array: Any) -> bool:
    return Field(str(array.dtype), array.shape[1:]).is_image
