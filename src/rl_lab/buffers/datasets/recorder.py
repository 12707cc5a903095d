"""Saves what a collector brings as episodes: trajectories may be cut anywhere, each episode is saved at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.format import Episode, EpisodeWriter
from rl_lab.core import ConfigError, Trajectory, Tree, tree_map, unknown_name


class EpisodeRecorder:
    """Cuts trajectories [T, N, ...] into episodes, each copy's steps for itself.

    An episode that had begun before the first trajectory is left out; one that has not ended is not saved.

    Args:
        writer: Where episodes go.
        extras: What `act` returned that is to be kept among the infos, one number per step each.
        task: What is being done, in words.
    """

    def __init__(self, writer: EpisodeWriter, *, extras: Sequence[str] = (), task: str | None = None) -> None:
        self._writer, self._extras, self._task = writer, tuple(extras), task
        self._parts: dict[int, list[Tree]] = {}  # steps of the running episodes by copy; a copy without: not begun
        self.episodes = 0

    def add(self, trajectory: Trajectory) -> int:
        """Take `T` vector steps and return how many episodes they ended."""
        rows = self._rows(trajectory)
        ended = 0
        starts, ends = rows["is_first"], rows["terminated"] | rows["truncated"]
        events = np.argwhere(starts | ends)  # by time, then by copy, so that the order does not depend on the cuts
        taken = np.zeros(ends.shape[1], dtype=np.int64)
        for step, copy in events:
            if starts[step, copy]:
                self._parts[copy], taken[copy] = [], step
            if ends[step, copy] and copy in self._parts:
                self._keep(rows, copy, taken[copy], step + 1)
                self._save(self._parts.pop(copy))
                ended += 1
        for copy in list(self._parts):
            self._keep(rows, copy, taken[copy], len(ends))
        self.episodes += ended
        return ended

    def _rows(self, trajectory: Trajectory) -> dict[str, Any]:
        names = ("observations", "actions", "rewards", "terminated", "truncated", "final_observations", "is_first")
        for name in self._extras:
            if name not in trajectory:
                raise ConfigError(unknown_name("extra to record", name, trajectory.keys() - set(names)))
        rows = {name: trajectory[name] for name in names}
        infos = {**trajectory.get("infos", {}), **{name: trajectory[name] for name in self._extras}}
        return tree_map(lambda leaf: leaf.detach().cpu().numpy(), {**rows, "infos": infos})

    def _keep(self, rows: dict[str, Any], copy: int, begin: int, end: int) -> None:
        if end > begin:
            self._parts[copy].append(tree_map(lambda leaf: leaf[begin:end, copy].copy(), rows))

    def _save(self, parts: list[Tree]) -> None:
        rows = tree_map(lambda *leaves: np.concatenate(leaves), *parts)
        episode = Episode(
            observations=rows["observations"],
            actions=rows["actions"],
            rewards=rows["rewards"],
            terminated=bool(rows["terminated"][-1]),
            truncated=bool(rows["truncated"][-1]),
            final_observation=tree_map(lambda leaf: leaf[-1], rows["final_observations"]),
            infos=rows["infos"],
            task=self._task,
        )
        self._writer.save(episode)


def write_episodes(trajectories: Iterable[Trajectory], writer: EpisodeWriter, **options: Any) -> int:
    """Save the episodes of a stream of trajectories and return how many there were."""
    recorder = EpisodeRecorder(writer, **options)
    for trajectory in trajectories:
        recorder.add(trajectory)
    return recorder.episodes
