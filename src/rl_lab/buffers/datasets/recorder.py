"""Saves what a collector brings as episodes: trajectories may be cut anywhere, each episode is saved at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rl_lab.buffers.datasets.format import Episode, EpisodeWriter
from rl_lab.buffers.datasets.notes import OPERATORS, TIMES
from rl_lab.buffers.storage.episode_filter import EpisodeFilter
from rl_lab.buffers.storage.open_episodes import OpenEpisodes
from rl_lab.core import ConfigError, State, Trajectory, Tree, Witness, tree_map, unknown_name

_KEPT = ("observations", "actions", "rewards", "terminated", "truncated", "final_observations", "is_first")


class EpisodeRecorder:
    """Cuts trajectories [T, N, ...] into episodes, each copy's steps for itself.

    An episode whose beginning is missing is left out, and one that has not ended is not saved. Where steps are missing
    in the middle, what came before them is saved as an episode that was cut (truncated).

    Args:
        writer: Where episodes go.
        extras: What `act` returned that is to be kept among the infos, one number per step each.
        task: What is being done, in words.
        min_return: Episodes below it are not saved.
        require_info: Name of an info that must be positive at the last step of an episode that is saved.
    """

    def __init__(
        self,
        writer: EpisodeWriter,
        *,
        extras: Sequence[str] = (),
        task: str | None = None,
        min_return: float | None = None,
        require_info: str | None = None,
    ) -> None:
        self._writer, self._extras, self._task = writer, tuple(extras), task
        self._filter = EpisodeFilter(min_return, None, require_info)  # these two remember nothing
        self._open: OpenEpisodes | None = None  # until it is known how many copies there are
        self._seen: dict[int, tuple[float, str | None]] = {}  # of open steps, by number: no part of the state
        self._heard: Witness | None = None
        self.episodes = 0

    def witness(self, seen: Witness) -> None:
        """Hear when the steps that come next were taken, and who watched."""
        self._heard = seen

    def add(self, trajectory: Trajectory) -> int:
        """Take `T` vector steps and return how many episodes were saved."""
        rows = self._rows(trajectory)
        if self._open is None:
            self._open = OpenEpisodes(rows["rewards"].shape[1])
        if self._heard is not None:
            stamps = [(time, self._heard.operator) for time in self._heard.times]
            self._seen |= dict(enumerate(stamps, self._open.count))
            self._heard = None
        return self._save_all(self._open, self._open.take(rows))

    def end_episodes(self) -> int:
        """Save what there is of open episodes, as truncated, and return how many that were."""
        return 0 if self._open is None else self._save_all(self._open, self._open.cut())

    def _save_all(self, steps: OpenEpisodes, episodes: Iterable[Trajectory]) -> int:
        before = self.episodes
        for episode in episodes:
            if episode["is_first"][0] and self._filter.accepts(episode):
                self._save(tree_map(lambda leaf: leaf.numpy(), episode), steps.closed)
        self._seen = {number: stamp for number, stamp in self._seen.items() if number >= steps.oldest}
        return self.episodes - before

    def get_state(self) -> State:
        """Return the open episodes and how many were saved."""
        return {"episodes": self.episodes, "open": None if self._open is None else self._open.get_state()}

    def set_state(self, state: State) -> None:
        """Go on from `state`; when its open steps were taken is not known any more."""
        self.episodes, self._open, self._seen = state["episodes"], None, {}
        if state["open"] is not None:
            self._open = OpenEpisodes(len(state["open"]["starts"]))
            self._open.set_state(state["open"], torch.device("cpu"))

    def _rows(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return a copy of what is kept: the collector's memory is its own."""
        for name in self._extras:
            if name not in trajectory:
                raise ConfigError(unknown_name("extra to record", name, trajectory.keys() - set(_KEPT)))
        infos = {**trajectory.get("infos", {}), **{name: trajectory[name] for name in self._extras}}
        rows = {**{name: trajectory[name] for name in _KEPT}, "infos": infos}
        return tree_map(lambda leaf: leaf.detach().to("cpu", copy=True, memory_format=torch.contiguous_format), rows)

    def _save(self, rows: Tree, numbers: range) -> None:
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
                notes=self._notes(numbers),
            )
        )
        self.episodes += 1

    def _notes(self, numbers: range) -> dict[str, Any]:
        """Return when these steps were taken (null: before this process) and who watched from which of them on."""
        if not any(number in self._seen for number in numbers):
            return {}
        stamps = [self._seen.get(number, (None, None)) for number in numbers]
        operators: list[list[Any]] = []
        for step, (_, operator) in enumerate(stamps):
            if operator is not None and (not operators or operators[-1][1] != operator):
                operators.append([step, operator])
        return {TIMES: [time for time, _ in stamps], **({OPERATORS: operators} if operators else {})}


def write_episodes(trajectories: Iterable[Trajectory], writer: EpisodeWriter, **options: Any) -> int:
    """Save the episodes of a stream of trajectories and return how many there were."""
    recorder = EpisodeRecorder(writer, **options)
    for trajectory in trajectories:
        recorder.add(trajectory)
    return recorder.episodes
