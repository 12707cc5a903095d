"""Single observations with a label of how far the task had come: what a reward classifier learns from.

The last frames of a success are the last class; before that a success is cut into equal parts of the way, one class
each. With two classes all frames of failures are of the first class; with more they say nothing and are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.buffers.datasets.open import open_dataset
from rl_lab.buffers.datasets.trajectory import Converter
from rl_lab.buffers.storage.open_episodes import OpenEpisodes
from rl_lab.core import (
    Batch,
    Buffer,
    CheckpointError,
    ConfigError,
    EnvSpec,
    State,
    Trajectory,
    Tree,
    tree_cat,
    tree_map,
    unknown_name,
)


class Labelled(NamedTuple):
    """The frames of some episodes."""

    frames: Tree  # [R, ...]
    labels: Tensor  # [R] int64
    is_held_out: Tensor  # [R] bool


class LabelledFrames(Buffer):
    """Batches of `observations` and `labels`, each class as often as any other; `peek` shows what was held out.

    Episodes come from datasets and from what is collected. Some of them are held out: they are never sampled. The
    data of datasets is not in checkpoints, which know it by its sha256; what was collected is.

    Args:
        batch_size: Frames per batch.
        num_classes: 2: success or not; more: progress.
        path: A dataset whose episodes say by `label` what they are; null: none.
        successes: A dataset of successes; null: none.
        failures: A dataset of failures; null: none.
        label: Info that is above 0 at the last step of a success: `verdict` (of an operator), `is_success`.
        success_frames: How many of the last frames of a success are of the last class.
        held_out_share: Share of the episodes, successes and failures apart, that is held out.
        device: Where the frames live; the lab gives it.
        num_envs: Environment copies; the lab gives it.
        spec: What an observation looks like; the lab gives it.
        seed: Of the sampler; the lab gives it.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        num_classes: int = 2,
        path: str | None = None,
        successes: str | None = None,
        failures: str | None = None,
        label: str = "verdict",
        success_frames: int = 1,
        held_out_share: float = 0.2,
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("num_classes", num_classes, 2)):
            if value < least:
                raise ConfigError(f"{name} of labelled frames must be {least} or more, not {value}")
        if success_frames < 1 or not 0.0 < held_out_share < 1.0:
            raise ConfigError("labelled frames need success_frames of 1 or more and held_out_share between 0 and 1")
        self.batch_size, self.num_classes, self._label = batch_size, num_classes, label
        self._success_frames, self._share, self._device = success_frames, held_out_share, torch.device(device)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._open, self._counts = OpenEpisodes(num_envs), {True: 0, False: 0}  # episodes by whether they succeeded
        self._parts: list[Labelled] = []
        self._joined: Labelled | None = None
        self._missing: str | None = None  # not looked at yet
        self._sha256: list[str] = []
        for source, outcome in ((path, None), (successes, True), (failures, False)):
            if source is not None:
                self._load(source, Converter(spec), outcome)
        self._num_loaded = len(self._parts)
        if self._parts:
            self._reject_missing_classes()

    @property
    def size(self) -> int:
        """Return how many frames it holds, those that are held out too."""
        return sum(len(part.labels) for part in self._parts)

    @property
    def brings_data(self) -> bool:
        """Return whether there was a dataset."""
        return self._num_loaded > 0

    def add(self, trajectory: Trajectory) -> None:
        """Take `T` vector steps; episodes that end in them are labelled."""
        for episode in self._open.take(tree_map(lambda leaf: leaf.to(self._device), trajectory)):
            frames = tree_map(
                lambda x, last: torch.cat([x[1:], last]), episode["observations"], episode["final_observations"]
            )
            self._take(frames, self._outcome(episode, "what is collected"))

    def is_ready(self) -> bool:
        """Return whether it holds frames of all classes, to learn from and held out."""
        return not self.shortage()

    def shortage(self) -> str:
        """Return which frames are missing; empty: none."""
        if not self._parts:
            return "no labelled episode is whole yet"
        if self._missing is None:
            self._missing = self._missing_classes()
        return self._missing

    def sample(self) -> Batch:
        """Return frames that are not held out, of all classes alike."""
        self._reject_missing_classes()
        held = self._all()
        rows = (~held.is_held_out).nonzero().flatten()
        rows = rows[held.labels[rows].argsort(stable=True)]  # class by class
        counts = torch.bincount(held.labels[rows], minlength=self.num_classes)
        classes = torch.randint(self.num_classes, (self.batch_size,), generator=self._generator, device=self._device)
        drawn = torch.rand(self.batch_size, dtype=torch.float64, generator=self._generator, device=self._device)
        index = rows[(counts.cumsum(0) - counts)[classes] + (drawn * counts[classes]).long()]
        return self._batch(held, index)

    def peek(self, seed: int) -> Batch:
        """Return all that is held out, whatever the seed."""
        self._reject_missing_classes()
        return self._batch(self._all(), self._all().is_held_out.nonzero().flatten())

    def statistics(self) -> dict[str, float]:
        """Return how many frames and episodes there are."""
        episodes = {"successes": float(self._counts[True]), "failures": float(self._counts[False])}
        return {"size": float(self.size), **episodes}

    def get_state(self) -> State:
        """Return what was collected, open episodes and the sampler's state; of datasets their hashes."""
        own = [part._asdict() for part in self._parts[self._num_loaded :]]
        return {
            "datasets": list(self._sha256),
            "collected": tree_cat(own) if own else None,
            "counts": [self._counts[True], self._counts[False]],
            "open": self._open.get_state(),
            "rng": self._generator.get_state(),
        }

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held. Raises when a dataset is not the one it was."""
        if list(state["datasets"]) != self._sha256:
            raise CheckpointError("a dataset of labelled frames has changed: a run resumes only with the same data")
        del self._parts[self._num_loaded :]
        if state["collected"] is not None:
            held = tree_map(lambda leaf: leaf.to(self._device), state["collected"])
            self._parts.append(Labelled(**held))
        self._counts = dict(zip((True, False), state["counts"], strict=True))
        self._open.set_state(state["open"], self._device)
        self._generator.set_state(state["rng"].cpu())
        self._joined = self._missing = None

    def _load(self, path: str, convert: Converter, outcome: bool | None) -> None:
        reader = open_dataset(path)
        for number in reader.select(None):
            episode = reader.read(number)
            self._sha256.append(episode.sha256().hex())
            rows = convert(episode, f"{path}, episode {number}", self._device)
            if rows is not None:
                lane = tree_map(lambda leaf: leaf[:, 0], rows)
                self._take(lane["final_observations"], self._outcome(lane, path) if outcome is None else outcome)

    def _outcome(self, episode: Trajectory, where: str) -> bool:
        infos = episode.get("infos", {})
        if self._label not in infos:
            raise ConfigError(unknown_name(f"info of {where} in label", self._label, infos))
        return bool(infos[self._label][-1] > 0)

    def _take(self, frames: Tree, is_success: bool) -> None:
        """Label the frames [T, ...] of one episode, each of them what a step led to."""
        number = self._counts[is_success]
        self._counts[is_success] = number + 1
        if not is_success and self.num_classes > 2:
            return
        length = len(next(iter(frames.values())) if isinstance(frames, dict) else frames)
        done = torch.arange(1, length + 1, device=self._device)
        labels = done * (self.num_classes - 1) // (length + 1) if is_success else torch.zeros_like(done)
        if is_success:
            labels[-self._success_frames :] = self.num_classes - 1
        is_held_out = int((number + 1) * self._share + 0.5) > int(number * self._share + 0.5)  # evenly
        self._parts.append(Labelled(frames, labels, torch.full((length,), is_held_out, device=self._device)))
        self._joined = self._missing = None

    def _all(self) -> Labelled:
        if self._joined is None:
            parts = [part._asdict() for part in self._parts]
            self._joined = Labelled(**tree_cat(parts))
        return self._joined

    def _batch(self, held: Labelled, rows: Tensor) -> Batch:
        frames = tree_map(lambda leaf: leaf.index_select(0, rows), held.frames)
        return {"observations": frames, "labels": held.labels[rows]}

    def _reject_missing_classes(self) -> None:
        """Raise when frames of a class are missing, to learn from or to be held out."""
        if shortage := self.shortage():
            raise ConfigError(shortage)

    def _missing_classes(self) -> str:
        held = self._all()
        for name, which in (("to learn from", ~held.is_held_out), ("to be held out", held.is_held_out)):
            counts = torch.bincount(held.labels[which], minlength=self.num_classes).tolist()
            if 0 in counts:
                return (
                    f"a reward classifier needs frames of all {self.num_classes} classes {name}, there are {counts} "
                    f"(from {self._counts[True]} successes and {self._counts[False]} failures)"
                )
        return ""
