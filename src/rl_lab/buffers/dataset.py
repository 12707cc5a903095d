"""Offline data: the episodes of a dataset on disk, loaded once into a buffer that samples them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.buffers.datasets.format import DatasetError, DoneMeans, EpisodeReader
from rl_lab.buffers.datasets.open import Format, open_dataset
from rl_lab.buffers.datasets.state import apply_difference, difference, digest
from rl_lab.buffers.datasets.trajectory import Converter
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import (
    Batch,
    BatchKind,
    Buffer,
    CheckpointError,
    ConfigError,
    EnvSpec,
    Footprint,
    LabError,
    State,
    Trajectory,
)

RATE_TOLERANCE = 0.01  # of the environment's steps per second


class DatasetBuffer(Buffer):
    """Fills another buffer with the episodes of a dataset and samples from it; nothing can be added.

    A checkpoint holds the sampler's state and a sha256 of the loaded numbers, not the data, which the files give back.

    Args:
        path: The dataset's directory, or `packaged/NAME` for one that comes with the lab.
        into: The buffer that holds and samples the steps: a node with `_partial_: true`; the dataset gives it
            `num_envs: 1` and, when it says nothing, a `capacity` that fits.
        format: `lab`, `lerobot`, `minari`, `csv`, or `auto` to find out.
        episodes: Numbers of the episodes to load, or how many of the first ones; null: all.
        observation_keys: Where each observation of the environment lies in the dataset, if under another name; one name
            where the environment's observation is one array.
        action_low: Lowest action in the dataset, one number or one per entry, to be mapped to the environment's bounds.
        action_high: Highest action in the dataset.
        keep_last_step: Whether to keep the last step of an episode that was cut and whose final observation is not on
            disk (LeRobot); its value target would be wrong, so only for imitation.
        done_means: What `next.done` stands for in LeRobot datasets without `next.truncated`.
        device: Where the steps live; the lab gives it.
        spec: What observations and actions must look like; the lab gives it.
        seed: Of the inner buffer's sampler; the lab gives it.
    """

    def __init__(
        self,
        path: str,
        into: Callable[..., Buffer],
        *,
        format: Format = "auto",
        episodes: int | Sequence[int] | None = None,
        observation_keys: dict[str, str] | str | None = None,
        action_low: float | list[float] | None = None,
        action_high: float | list[float] | None = None,
        keep_last_step: bool = False,
        done_means: DoneMeans = "terminated",
        device: torch.device | str = "cpu",
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        if (action_low is None) != (action_high is None):
            raise ConfigError("action_low and action_high of a dataset come together")
        limits = None if action_low is None or action_high is None else (action_low, action_high)
        self._convert = Converter(spec, observation_keys, limits, keep_last_step)
        self._device = torch.device(device)
        self._reader = open_dataset(path, format, done_means=done_means)
        _reject_rate(self._reader, spec)
        self._numbers = self._reader.select(episodes)
        if not self._numbers:
            raise DatasetError(f"{path} has no episodes")
        self._steps = sum(self._reader.lengths[number] for number in self._numbers)
        self._trajectory(self._numbers[0])  # a damaged dataset, or one of another task, is told first of all
        for number in self._numbers[1:]:
            if not self._convert.fits(self._reader.extremes(number)):
                self._trajectory(number)  # says what does not fit
        self._make = self._factory(into, device=self._device, spec=spec, seed=seed)
        self._inner = self._first_inner()
        self._sha256 = ""  # of the loaded episodes
        self._directory: Path | None = None
        self._baseline: object = None  # a digest of the inner buffer's state as loading left it
        self._is_loaded = self._is_touched = False

    @property
    def size(self) -> int:
        """Return how many env steps the inner buffer holds."""
        return self._filled().size

    @property
    def brings_data(self) -> bool:
        """Return True: asking whether it is ready would load it."""
        return True

    @property
    def batch_kind(self) -> BatchKind | None:
        """Return what the inner buffer's are."""
        return self._inner.batch_kind

    def add(self, trajectory: Trajectory) -> None:
        """Refuse: the data is on disk."""
        raise LabError(f"the dataset {self._reader.path} is read-only: collect into another buffer")

    def is_ready(self) -> bool:
        """Return whether the inner buffer can be sampled."""
        return self._filled().is_ready()

    def sample(self) -> Batch:
        """Return the inner buffer's next batch."""
        inner = self._filled()
        self._is_touched = True
        return inner.sample()

    def peek(self, seed: int) -> Batch:
        """Return a batch of the inner buffer."""
        return self._filled().peek(seed)

    def limits(self, key: str) -> tuple[Any, Any]:
        """Return those of the inner buffer."""
        return self._filled().limits(key)

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Hand it to the inner buffer."""
        self._filled().write_back(values)

    def statistics(self) -> dict[str, float]:
        """Return those of the inner buffer, and the number of episodes."""
        return {**self._filled().statistics(), "episodes": float(len(self._numbers))}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return the inner buffer's, of which checkpoints hold only what changed."""
        return tuple(taken._replace(is_in_checkpoints=False) for taken in self._inner.footprint())

    def attach(self, directory: Path) -> None:
        """Let the inner buffer keep its files there."""
        self._directory = directory
        self._inner.attach(directory)

    def get_state(self) -> State:
        """Return which dataset this is, and what sampling has changed in the inner buffer since it was loaded."""
        inner = self._filled()
        return {"dataset": self._identity(), "change": difference(self._baseline, inner.get_state())}

    def set_state(self, state: State) -> None:
        """Go on sampling where `state` was taken. Raises when the dataset is not the one it was."""
        self._filled()  # what it holds is known only then
        here, there = self._identity(), state["dataset"]
        for key, value in here.items():
            if there[key] != value and key != "path":
                raise CheckpointError(
                    f"the checkpoint was made with the dataset {there['path']}, and {key} of {here['path']} differs: "
                    "a run resumes only with the same data"
                )
        if self._is_touched:  # the change is one to what loading gives
            self._inner, self._is_loaded = self._make(), False
            if self._directory is not None:
                self._inner.attach(self._directory)
        inner = self._filled()
        inner.set_state(apply_difference(inner.get_state(), state["change"]))
        self._is_touched = True

    def _identity(self) -> dict[str, object]:
        path = str(self._reader.path.absolute())
        return {"path": path, "episodes": list(self._numbers), "steps": self._steps, "sha256": self._sha256}

    def _factory(self, into: Callable[..., Buffer], **supplied: Any) -> Callable[[], Buffer]:
        """Return what makes the inner buffer, for one lane of steps; what its node says itself stays."""
        if isinstance(into, Buffer):
            raise ConfigError("into of a dataset needs _partial_: true (the dataset gives it num_envs and capacity)")
        said = {k for k, v in (into.keywords if isinstance(into, partial) else {}).items() if v is not None}
        limit = 0 if self._convert.spec is None else self._convert.spec.max_episode_steps or 0
        rows = self._steps + len(self._numbers)  # a row per final observation too
        supplied |= {"capacity": max(rows, limit + 1)}  # no buffer of episodes is shorter than one may be
        given = {key: value for key, value in supplied.items() if key not in said} | {"num_envs": 1}
        accepted = inspect.signature(into).parameters
        return partial(into, **{key: value for key, value in given.items() if key in accepted})

    def _first_inner(self) -> Buffer:
        """Return the inner buffer; one that cannot hold the dataset is refused."""
        try:
            inner = self._make()
        except ConfigError as error:
            raise ConfigError(f"into of the dataset {self._reader.path} ({self._steps} steps): {error}") from error
        count = len(self._numbers)
        are_all_kept = self._reader.has_final_observations or self._convert.keep_last_step
        rows = self._steps - (0 if are_all_kept else count) + (count if isinstance(inner, SequenceBuffer) else 0)
        capacity = min((taken.capacity for taken in inner.footprint()), default=rows)
        if capacity < rows and not isinstance(inner, EpisodeBuffer):  # which may refuse episodes
            raise ConfigError(f"into.capacity={capacity} is less than the {rows} rows of {self._reader.path}")
        if isinstance(inner, EpisodeBuffer):
            self._reject_horizons(chunk_length=inner.chunk_length, history=inner.history)
        return inner

    def _reject_horizons(self, **horizons: int | None) -> None:
        lengths = [self._reader.lengths[number] for number in self._numbers]
        for key, length in horizons.items():
            if (length or 1) > max(lengths):
                raise ConfigError(
                    f"into.{key}={length} is longer than every episode of {self._reader.path}: the shortest has "
                    f"{min(lengths)} steps, the longest {max(lengths)} (choose {max(lengths)} or less)"
                )

    def _filled(self) -> Buffer:
        """Return the inner buffer; the first call loads the episodes into it."""
        if not self._is_loaded:
            hashes, rows, refused = hashlib.sha256(), 0, 0.0
            extra = isinstance(self._inner, SequenceBuffer)  # a row of the final observation, too
            for number in self._numbers:
                trajectory, sha256 = self._trajectory(number)
                hashes.update(sha256)
                if trajectory is not None:
                    self._inner.add(trajectory)
                    before, refused = refused, self._inner.statistics().get("refused", 0.0)
                    rows += 0 if refused > before else len(trajectory["rewards"]) + extra
            self._reject_dropped(rows)
            self._is_loaded, self._sha256 = True, hashes.hexdigest()
            self._baseline = digest(self._inner.get_state())
        return self._inner

    def _trajectory(self, number: int) -> tuple[Trajectory | None, bytes]:
        """Return an episode as the inner buffer takes it, None when no step of it can be used, and its sha256."""
        episode = self._reader.read(number)
        return self._convert(episode, f"{self._reader.path}, episode {number}", self._device), episode.sha256()

    def _reject_dropped(self, rows: int) -> None:
        held = self._inner.size
        if held < rows:
            raise ConfigError(
                f"into.capacity is too small: it kept {held} of the {rows} rows of {self._reader.path} "
                f"({self._steps + len(self._numbers)} rows hold all, the default)"
            )


def _reject_rate(reader: EpisodeReader, spec: EnvSpec | None) -> None:
    """Raise when the dataset was recorded at another rate than the environment steps."""
    found, wanted = reader.steps_per_second, None if spec is None else spec.steps_per_second
    if spec is not None and found is not None and wanted is not None and abs(found - wanted) > RATE_TOLERANCE * wanted:
        raise DatasetError(
            f"{reader.path} has {found:g} steps per second, {spec.id!r} has {wanted:g}: its actions would mean others"
        )
