"""Episodes as they are exchanged between files and buffers, and what reads and writes them.

An episode is a tree of NumPy arrays in time order, laid out as everywhere in the lab: images are uint8 [C, H, W].
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from rl_lab.core.errors import LabError

Array = np.ndarray[Any, Any]
Observations = Array | dict[str, Array]
Actions = Array | dict[str, Array]
DoneMeans = Literal["terminated", "truncated", "ignored"]  # what the end of an episode stands for where files are vague
CHANNELS = (1, 3, 4)  # grey, RGB, RGBA


class DatasetError(LabError):
    """A dataset is missing, damaged, foreign or does not fit; the message names the file and the key."""


class Field(NamedTuple):
    """What one step of an array looks like."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_image(self) -> bool:
        """Return whether it is a picture, uint8 [C, H, W]."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[0] in CHANNELS

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of `T` steps.

    Attributes:
        observations: What was seen before each action, [T, ...], or a dict of such arrays.
        actions: [T, ...], or a dict of such arrays.
        rewards: [T], float32.
        terminated: Whether the last step ended the task.
        truncated: Whether the last step was cut by a time limit, or the recording just ends there.
        final_observation: What the last step led to, without the time dimension.
        infos: Further numbers by name, [T, ...] each, `is_intervention` say.
        task: What was to be done, in words.
        has_final_observation: False: the file does not hold it, and `final_observation` repeats the last one.
        notes: What is known beside and never learned from, when and by whom it was recorded (`datasets.notes`).
    """

    observations: Observations
    actions: Actions
    rewards: Array
    terminated: bool
    truncated: bool
    final_observation: Observations
    infos: Mapping[str, Array] = field(default_factory=dict)
    task: str | None = None
    has_final_observation: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.terminated == self.truncated:
            raise DatasetError("an episode ends either terminated or truncated: exactly one of them must be true")
        if self.rewards.ndim != 1 or len(self.rewards) < 1:
            raise DatasetError(f"rewards of an episode must be [T] with T >= 1, got {list(self.rewards.shape)}")
        for name, array in self.arrays().items():
            if array.dtype.kind not in "fiub":
                raise DatasetError(f"{name} of an episode is {array.dtype}; only numbers and booleans can be kept")
            if len(array) != len(self.rewards):
                raise DatasetError(f"{name} of an episode has {len(array)} steps, rewards has {len(self)}")
        finals = named(self.final_observation)
        for name, array in named(self.observations).items():
            if name not in finals or finals[name].shape != array.shape[1:]:
                raise DatasetError(f"final_observation does not look like one of {name}")

    def __len__(self) -> int:
        return len(self.rewards)

    def arrays(self) -> dict[str, Array]:
        """Return every array [T, ...] by name: `observations`, `actions`, `rewards`, those of dicts `<name>/<key>`."""
        infos = {f"infos/{name}": array for name, array in self.infos.items()}
        return {**named(self.observations), **named(self.actions, "actions"), "rewards": self.rewards, **infos}

    def fields(self) -> dict[str, Field]:
        """Return what each array looks like."""
        return {name: Field(str(array.dtype), array.shape[1:]) for name, array in self.arrays().items()}

    def sha256(self) -> bytes:
        """Return a hash of all numbers, whatever files they came from."""
        finals = {f"final {name}": array for name, array in named(self.final_observation).items()}
        digest = hashlib.sha256(f"{self.terminated} {self.has_final_observation}".encode())
        for name, array in sorted({**self.arrays(), **finals}.items()):
            digest.update(f" {name} {array.dtype} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


def named(part: Observations | Actions, name: str = "observations") -> dict[str, Array]:
    """Return the arrays of observations, or of actions, under the names that files give them."""
    return {f"{name}/{key}": array for key, array in part.items()} if isinstance(part, dict) else {name: part}


def unnamed(arrays: Mapping[str, Array], name: str = "observations") -> Array | dict[str, Array]:
    """Return what `named` named; other names are passed over."""
    if name in arrays:
        return arrays[name]
    prefix = f"{name}/"
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


def is_plain(name: str, dtype: str) -> bool:
    """Return whether an array is of actions or fractions; pictures are neither."""
    return dtype.startswith("float") or name.partition("/")[0] == "actions"


def plain_numbers(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of actions and fractions."""
    return {name: array for name, array in arrays.items() if is_plain(name, str(array.dtype))}


def reject_change(where: Path, known: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise when an episode's fields are not those that the dataset has."""
    for name in sorted(known.keys() | found.keys()):
        if name not in found:
            raise DatasetError(f"{where}: the episode has no {name!r}, which the dataset has as {known[name]}")
        if name not in known:
            raise DatasetError(f"{where}: the episode has {name!r}, which the dataset has not ({', '.join(known)})")
        if known[name] != found[name]:
            raise DatasetError(f"{where}: {name!r} is {found[name]} instead of {known[name]}")


class EpisodeReader(ABC):
    """A dataset on disk, opened and checked; its episodes are read one at a time."""

    path: Path
    lengths: Sequence[int]  # steps of each episode
    has_final_observations: bool = True  # False: files have no place for them
    steps_per_second: float | None = None  # None: files do not tell
    robot: str | None = None  # what files call it
    format: str = "packaged"

    @abstractmethod
    def read(self, number: int) -> Episode:
        """Return one episode, checked. Raises DatasetError."""

    def glance(self, number: int) -> Episode:
        """Return one episode for its numbers; its pictures may be left out, [T, 0]."""
        return self.read(number)

    def extremes(self, number: int) -> dict[str, Array]:
        """Return arrays of one episode by name whose rows hold its smallest and largest numbers, without pictures.

        What they show is a suspicion: only `read` checks the episode.
        """
        return plain_numbers(self.glance(number).arrays())

    def select(self, episodes: int | Sequence[int] | None) -> list[int]:
        """Return the numbers of the wanted episodes, or of so many first ones; None is all. Raises for others."""
        if isinstance(episodes, int):
            episodes = range(episodes)
        numbers = list(range(len(self.lengths)) if episodes is None else episodes)
        for number in numbers:
            if not 0 <= number < len(self.lengths):
                raise DatasetError(f"{self.path} has no episode {number} (it has 0 to {len(self.lengths) - 1})")
        return numbers

    def episodes(self, episodes: int | Sequence[int] | None = None) -> Iterator[Episode]:
        """Yield the wanted episodes, each read when it is asked for."""
        for number in self.select(episodes):
            yield self.read(number)


class EpisodeWriter(ABC):
    """Adds episodes to a dataset on disk. An episode is there for good as soon as `save` has returned."""

    @abstractmethod
    def save(self, episode: Episode) -> int:
        """Append an episode and return its number."""

    def close(self) -> None:  # noqa: B027  (most writers have nothing left to do)
        """Let another process write; what was saved needs no close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
