"""How `lab data` opens what it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_lab.buffers.datasets.format import EpisodeReader, EpisodeWriter
from rl_lab.buffers.datasets.open import open_writer
from rl_lab.core.errors import UsageError

FORMATS = ("lab", "lerobot", "csv")


def writer_like(
    reader: EpisodeReader, format: Any, *, fps: float | None, pictures: str, robot: str | None
) -> Callable[[Path], EpisodeWriter]:
    """Return what opens a writer for a dataset of the same robot."""
    rate, robot = fps or reader.steps_per_second, robot or reader.robot
    if format != "lerobot":
        return lambda path: open_writer(path, format, robot=robot, steps_per_second=rate)
    if rate is None:
        raise UsageError(f"--fps is needed: {reader.path} does not tell its steps per second")
    return lambda path: open_writer(path, format, fps=rate, pictures=pictures, robot_type=robot)
