"""Holds what was collected since the last update; sampling hands it over."""

from __future__ import annotations

from rl_lab.core import Batch, Buffer, State, Trajectory, tree_cat


class RolloutBuffer(Buffer):
    """The on-policy buffer: chunks [T_i, N, ...] go in, one rollout [T, N, ...] comes out."""

    def __init__(self) -> None:
        self._chunks: list[Trajectory] = []

    def add(self, trajectory: Trajectory) -> None:
        """Append a chunk of the running rollout."""
        self._chunks.append(trajectory)

    def is_ready(self) -> bool:
        """Return whether anything was collected since the last sample."""
        return bool(self._chunks)

    def sample(self) -> Batch:
        """Return the whole rollout and forget it."""
        rollout: Batch = tree_cat(self._chunks)
        self._chunks = []
        return rollout

    def get_state(self) -> State:
        """Return the chunks."""
        return {"chunks": list(self._chunks)}

    def set_state(self, state: State) -> None:
        """Hold the chunks of `state`."""
        self._chunks = list(state["chunks"])
