"""A buffer that also keeps every episode on disk, as a dataset that other runs can load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from rl_lab.buffers.datasets.format import DatasetError
from rl_lab.buffers.datasets.growing import GrowingDataset, Kind, lab_options, lerobot_options
from rl_lab.buffers.datasets.recorder import EpisodeRecorder
from rl_lab.buffers.executed import ExecutedActions
from rl_lab.core import (
    Batch,
    BatchKind,
    Buffer,
    CheckpointError,
    EnvSpec,
    Footprint,
    State,
    Trajectory,
    Witness,
    check_choice,
)


class RecordingBuffer(Buffer):
    """Hands what is collected to another buffer, from which it samples, and writes whole episodes into a dataset.

    The dataset is `buffers/<name>/dataset` of the run. A run that is resumed goes on with the episodes that its
    checkpoint knows; later ones are forgotten and collected again, but those that a person has watched are kept beside
    it (`dataset_cut_1`, ...). When each step was taken and who watched lies in the
    dataset's notes (`rl_lab.buffers.datasets.notes`), which no checkpoint holds.

    Args:
        into: The buffer that is learned from.
        format: `lab` (rl_lab.buffers.datasets.lab) or `lerobot` (LeRobotDataset v3.0).
        extras: What `act` returned that is kept beside each step, such as a policy's latents; infos are kept anyway.
        task: What is being done, in words.
        action_labels: `commanded`, or `executed`: what was done in its place, as far as observations show it; both what
            is recorded and what is learned from.
        min_return: Episodes below it are learned from, perhaps, but not recorded.
        require_info: Name of an info that must be positive at the end of an episode that is recorded, such as verdict.
        pictures: How LeRobot keeps them: exactly (`png`), as `jpeg` or as `video`.
        video_codec: `libsvtav1`, `h264` or `hevc`.
        fps: Steps per second in LeRobot's files; null: those that the environment tells.
        robot: What files call the robot; null: the environment's id.
        spec: Of the environment; the lab gives it.
    """

    def __init__(
        self,
        into: Buffer,
        *,
        format: Kind = "lab",
        extras: Sequence[str] = (),
        task: str | None = None,
        action_labels: Literal["commanded", "executed"] = "commanded",
        min_return: float | None = None,
        require_info: str | None = None,
        pictures: Literal["png", "jpeg", "video"] = "png",
        video_codec: str = "libsvtav1",
        fps: float | None = None,
        robot: str | None = None,
        spec: EnvSpec | None = None,
    ) -> None:
        check_choice("action_labels", action_labels, ("commanded", "executed"))
        options = lab_options(spec, robot)
        if format == "lerobot":
            options = lerobot_options(spec, fps=fps, pictures=pictures, video_codec=video_codec, robot=robot)
        self._inner, self._writer = into, GrowingDataset(format, options)
        self._relabel = ExecutedActions(spec) if action_labels == "executed" else None
        self._recorder = EpisodeRecorder(
            self._writer, extras=extras, task=task, min_return=min_return, require_info=require_info
        )
        self._is_settled = False  # whether the dataset holds what this process knows of

    @property
    def size(self) -> int:
        """Return how many env steps the inner buffer holds."""
        return self._inner.size

    @property
    def brings_data(self) -> bool:
        """Return whether the inner buffer does."""
        return self._inner.brings_data

    @property
    def is_on_policy(self) -> bool:
        """Return whether the inner buffer is."""
        return self._inner.is_on_policy

    @property
    def needed_steps(self) -> int:
        """Return what the inner buffer waits for."""
        return self._inner.needed_steps

    @property
    def batch_rows(self) -> int:
        """Return what the inner buffer replays."""
        return self._inner.batch_rows

    @property
    def batch_kind(self) -> BatchKind | None:
        """Return what the inner buffer's are."""
        return self._inner.batch_kind

    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps, and on disk the episodes that end in them."""
        if not self._is_settled:  # a process that was killed before its first checkpoint may have left episodes
            self._writer.cut(self._recorder.episodes)
            self._is_settled = True
        if self._relabel is not None:
            trajectory = self._relabel(trajectory)
        self._recorder.add(trajectory)
        self._inner.add(trajectory)

    def witness(self, seen: Witness) -> None:
        """Note when the steps that come next were taken and who watched."""
        self._recorder.witness(seen)
        self._inner.witness(seen)

    def end_episodes(self) -> None:
        """Record what there is of open episodes, as truncated."""
        self._recorder.end_episodes()
        self._inner.end_episodes()

    def is_ready(self) -> bool:
        """Return whether the inner buffer is."""
        return self._inner.is_ready()

    def shortage(self) -> str:
        """Return what the inner buffer says."""
        return self._inner.shortage()

    def sample(self) -> Batch:
        """Return the inner buffer's next batch."""
        return self._inner.sample()

    def draw(self, num_rows: int | None = None) -> Batch:
        """Return the inner buffer's next batch, or single rows."""
        return self._inner.draw(num_rows)

    def peek(self, seed: int) -> Batch:
        """Return what the inner buffer draws from this seed."""
        return self._inner.peek(seed)

    def limits(self, key: str) -> tuple[Any, Any]:
        """Return the limits of what the inner buffer holds."""
        return self._inner.limits(key)

    def sweep(self) -> Iterator[Batch]:
        """Go through the inner buffer."""
        return self._inner.sweep()

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Let the inner buffer take what an update returned."""
        self._inner.write_back(values)

    def statistics(self) -> dict[str, float]:
        """Return those of the inner buffer and how many episodes are on disk."""
        return {**self._inner.statistics(), "recorded": float(self._recorder.episodes)}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return the inner buffer's; nothing bounds the dataset."""
        return tuple(
            taken._replace(part=".".join(filter(None, ("into", taken.part)))) for taken in self._inner.footprint()
        )

    def attach(self, directory: Path) -> None:
        """Keep the dataset in this directory, and the inner buffer's files too."""
        self._writer.path = directory / "dataset"
        self._inner.attach(directory / "into")

    def get_state(self) -> State:
        """Return the inner buffer, the open episodes and how many are on disk."""
        return {"into": self._inner.get_state(), "recorder": self._recorder.get_state()}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held; what was recorded after it is forgotten."""
        self._inner.set_state(state["into"])
        self._recorder.set_state(state["recorder"])
        try:
            self._writer.cut(self._recorder.episodes)
        except DatasetError as error:
            raise CheckpointError(f"a recording buffer cannot go on: {error}") from error
        self._is_settled = True
