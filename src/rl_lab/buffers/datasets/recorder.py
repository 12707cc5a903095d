"""Saves what a collector brings as episodes: trajectories may be cut anywhere, each episode is saved at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rl_lab.buffers.datasets.format import Episode, EpisodeWriter
from rl_lab.buffers.storage.open_episodes import OpenEpisodes
from rl_lab.core import ConfigError, Trajectory, Tree, tree_map, unknown_name

_KEPT = ("observations", "actions", "rewards", "terminated", "truncated", "final_observations", "is_first")


class EpisodeRecorder:
    """Cuts trajectories [T, N, ...] into episodes, each copy's steps for itself.

    An episode whose beginning is missing is left out, and one that has not ended is not saved. Where steps are missing
    in the middle, what came before them is saved as an episode that was cut (truncated).

    Args:
        writer: Where episodes go.
        extras: What `act` returned that is to be kept among the infos, one number per step each.
        task: What is being done, in words.
    """

    def __init__(self, writer: EpisodeWriter, *, extras: Sequence[str] = (), task: str | None = None) -> None:
        self._writer, self._extras, self._task = writer, tuple(extras), task
        self._open: OpenEpisodes | None = None  # until it is known how many copies there are
        self.episodes = 0

    def add(self, trajectory: Trajectory) -> int:
        """Take `T` vector steps and return how many episodes were saved."""
        rows = self._rows(trajectory)
        if self._open is None:
            self._open = OpenEpisodes(rows["rewards"].shape[1])
        before = self.episodes
        for episode in self._open.take(rows):
            if episode["is_first"][0]:
                self._save(tree_map(lambda leaf: leaf.numpy(), episode))
        return self.episodes - before

    def _rows(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return a copy of what is kept: the collector's memory is its own."""
        for name in self._extras:
            if name not in trajectory:
                raise ConfigError(unknown_name("extra to record", name, trajectory.keys() - set(_KEPT)))
        infos = {**trajectory.get("infos", {}), **{name: trajectory[name] for name in self._extras}}
        rows = {**{name: trajectory[name] for name in _KEPT}, "infos": infos}
        return tree_map(lambda leaf: leaf.detach().to("cpu", copy=True, memory_format=torch.contiguous_format), rows)

    def _save(self, rows: Tree) -> None:
        self._writer.save(
            Episode(
                observations=rows["observations"],
                actions=rows["actions"],
                rewards=rows["rewards"],
                terminated=bool(rows["terminated"][-1]),
                truncated=bool(rows["truncated"][-1]),
                final_observation=tree_map(lambda leaf: leaf[-1], rows["final_observations"]),
                infos=rows["infos"],
                task=self._task,
            )
        )
        self.episodes += 1


def write_episodes(trajectories: Iterable[Trajectory], writer: EpisodeWriter, **options: Any) -> int:
    """Save the episodes of a stream of trajectories and return how many there were."""
    recorder = EpisodeRecorder(writer, **options)
    for trajectory in trajectories:
        recorder.add(trajectory)
    return recorder.episodes
