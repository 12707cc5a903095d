"""A dataset that grows while a run collects: nothing is left open or locked between two episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl_lab.buffers.datasets.format import Episode, EpisodeWriter, Field
from rl_lab.buffers.datasets.lab import LabWriter
from rl_lab.buffers.datasets.merge import write_new
from rl_lab.buffers.datasets.open import MARKS, open_dataset, open_writer
from rl_lab.core import Box, ConfigError, EnvSpec, Leaf, check_choice, leaves_of
from rl_lab.core.errors import LabError
from rl_lab.core.operator import OPERATOR_TIME

if TYPE_CHECKING:
    from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter

Kind = Literal["lab", "lerobot"]
LOOSE_EPISODES = 50  # files of so many episodes are joined at once


class GrowingDataset(EpisodeWriter):
    """Writes into `path`, once it is known, in one of the lab's two formats.

    Args:
        kind: `lab` or `lerobot`.
        options: Of the format's writer.
    """

    def __init__(self, kind: Kind = "lab", options: Mapping[str, Any] | None = None) -> None:
        check_choice("format of a recorded dataset", kind, ("lab", "lerobot"))
        self.path: Path | None = None
        self._kind, self._options = kind, dict(options or {})
        self._lerobot: LeRobotWriter | None = None  # what it knows of the files, so that they are not read again

    def save(self, episode: Episode) -> int:
        """Append an episode and return its number."""
        with self._held() as writer:
            number = writer.save(episode)
            if self._lerobot is not None and (number + 1) % LOOSE_EPISODES == 0:
                self._lerobot.compact()
            return number

    def cut(self, length: int) -> None:
        """Forget all episodes but the first `length`; a person's work, which no run repeats, is set aside first."""
        if self.path is not None and (length > 0 or self.path.exists()):
            with self._held() as writer:
                self._set_aside(self.path, length)
                writer.cut(length)

    def _set_aside(self, path: Path, length: int) -> None:
        """Keep later episodes that a person has watched as the dataset `<path>_cut_1`, or the next free number."""
        if not any((path / mark).exists() for mark in MARKS[self._kind]):
            return
        reader = open_dataset(path, self._kind, is_checked=False)
        later = range(length, len(reader.lengths))
        if watched := [number for number in later if OPERATOR_TIME in reader.glance(number).infos]:
            names = (path.with_name(f"{path.name}_cut_{number}") for number in count(1))
            free = next(name for name in names if not name.exists())
            write_new(free, lambda new: open_writer(new, self._kind, **self._options), reader.episodes(watched))

    @contextmanager
    def _held(self) -> Iterator[LabWriter | LeRobotWriter]:
        """Give a writer, which is the only one as long as it is used."""
        if self.path is None:
            raise LabError("a recording buffer has no directory to write to: it was not attached to a run")
        if self._kind == "lab":
            with LabWriter(self.path, **self._options) as writer:
                yield writer
            return
        if self._lerobot is None or self._lerobot.path != self.path:
            from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter

            self._lerobot = LeRobotWriter(self.path, **self._options)
        else:
            self._lerobot.reclaim()
        try:
            yield self._lerobot
        finally:
            self._lerobot.release()


def lab_options(spec: EnvSpec | None, robot: str | None) -> dict[str, Any]:
    """Return what the lab's own writer is told."""
    if spec is None:
        return {"robot": robot}
    return {"robot": robot or spec.id, "steps_per_second": spec.steps_per_second}


def lerobot_options(
    spec: EnvSpec | None, *, fps: float | None, pictures: str, video_codec: str, robot: str | None
) -> dict[str, Any]:
    """Return what LeRobot's writer is told; whatever it could not keep of the environment is refused at once."""
    from rl_lab.buffers.datasets.lerobot_format import check_name
    from rl_lab.buffers.datasets.lerobot_writer import check_options

    fps = fps if fps is not None or spec is None else spec.steps_per_second
    if fps is None:
        name = "the environment" if spec is None else repr(spec.id)
        raise ConfigError(f"fps of a recording buffer: {name} does not tell its steps per second, so it must be given")
    check_options(fps, pictures, 95, video_codec)
    if spec is not None:
        if isinstance(spec.action, Mapping):
            raise ConfigError(f"format=lerobot cannot keep the dict of actions of {spec.id!r} (choices: lab)")
        for name, leaf in leaves_of(spec.observation).items():
            check_name(f"format=lerobot, {spec.id!r}", f"observation.{name}")
            _reject_unfit_video(name, leaf, pictures)
    robot = robot or (None if spec is None else spec.id)
    return {"fps": fps, "pictures": pictures, "video_codec": video_codec, "robot_type": robot}


def _reject_unfit_video(name: str, leaf: Leaf, pictures: str) -> None:
    if pictures != "video" or not isinstance(leaf, Box):
        return
    if Field(str(leaf.dtype).removeprefix("torch."), leaf.shape).is_image:
        channels, height, width = leaf.shape
        if channels != 3 or height % 2 or width % 2:
            raise ConfigError(
                f"pictures=video needs 3 channels and even sizes, {name or 'the observation'} is "
                f"{channels} x {height} x {width} (choices: png, jpeg)"
            )
