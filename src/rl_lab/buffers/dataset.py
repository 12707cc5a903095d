"""Offline data: the episodes of a dataset on disk, loaded once into a buffer that samples them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.buffers.datasets.format import DatasetError, DoneMeans
from rl_lab.buffers.datasets.open import Format, open_dataset
from rl_lab.buffers.datasets.state import apply_difference, difference, digest
from rl_lab.buffers.datasets.trajectory import Converter
from rl_lab.core import Batch, Buffer, CheckpointError, ConfigError, EnvSpec, Footprint, LabError, State, Trajectory


class DatasetBuffer(Buffer):
    """Fills another buffer with the episodes of a dataset and samples from it; nothing can be added.

    A checkpoint holds the sampler's state and a fingerprint of the dataset, not the data, which the files give back.

    Args:
        path: The dataset's directory.
        into: The buffer that holds and samples the steps: a node with `_partial_: true`; the dataset gives it
            `num_envs: 1` and, when it says nothing, a `capacity` that fits.
        format: `lab`, `lerobot`, `minari`, or `auto` to find out.
        episodes: Numbers of the episodes to load; null: all.
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
        episodes: Sequence[int] | None = None,
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
        self._numbers = self._reader.select(episodes)
        if not self._numbers:
            raise DatasetError(f"{path} has no episodes")
        self._steps = sum(self._reader.lengths[number] for number in self._numbers)
        self._sha256 = self._reader.fingerprint()
        self._make = self._factory(into, device=self._device, spec=spec, seed=seed)
        self._inner = self._make()
        self._reject_small(self._inner.footprint())
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

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Hand it to the inner buffer."""
        self._filled().write_back(values)

    def statistics(self) -> dict[str, float]:
        """Return those of the inner buffer, and the number of episodes."""
        return {**self._filled().statistics(), "episodes": float(len(self._numbers))}

    def footprint(self) -> Footprint | None:
        """Return the inner buffer's."""
        return self._inner.footprint()

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
        return {"path": path, "sha256": self._sha256, "episodes": list(self._numbers), "steps": self._steps}

    def _factory(self, into: Callable[..., Buffer], **supplied: Any) -> Callable[[], Buffer]:
        """Return what makes the inner buffer, for one lane of steps; what its node says itself stays."""
        if isinstance(into, Buffer):
            raise ConfigError("into of a dataset needs _partial_: true (the dataset gives it num_envs and capacity)")
        said = {k for k, v in (into.keywords if isinstance(into, partial) else {}).items() if v is not None}
        supplied |= {"capacity": self._steps + len(self._numbers)}  # a row per final observation too
        given = {key: value for key, value in supplied.items() if key not in said} | {"num_envs": 1}
        accepted = inspect.signature(into).parameters
        return partial(into, **{key: value for key, value in given.items() if key in accepted})

    def _reject_small(self, footprint: Footprint | None) -> None:
        if footprint is not None and footprint.capacity < self._steps:
            raise ConfigError(
                f"into.capacity={footprint.capacity} is less than the {self._steps} steps of {self._reader.path}"
            )

    def _filled(self) -> Buffer:
        """Return the inner buffer; the first call loads the episodes into it."""
        if not self._is_loaded:
            for number in self._numbers:
                where = f"{self._reader.path}, episode {number}"
                trajectory = self._convert(self._reader.read(number), where, self._device)
                if trajectory is not None:
                    self._inner.add(trajectory)
            self._is_loaded = True
            self._baseline = digest(self._inner.get_state())
        return self._inner
