"""On-policy storage: everything that was collected since the last update, once."""

from __future__ import annotations

import torch

from rl_lab.core import Batch, Buffer, State, Trajectory, tree_cat, tree_map


class RolloutBuffer(Buffer):
    """Keeps chunks in the order they came; `sample` joins them in time and empties the buffer.

    Args:
        device: Where restored chunks go; the lab gives it.
    """

    def __init__(self, *, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._chunks: list[Trajectory] = []

    @property
    def size(self) -> int:
        """Return how many env steps it holds."""
        return sum(chunk["rewards"].numel() for chunk in self._chunks)

    def add(self, trajectory: Trajectory) -> None:
        """Append `T` vector steps."""
        self._chunks.append(trajectory)

    def is_ready(self) -> bool:
        """Return whether it holds anything."""
        return bool(self._chunks)

    def sample(self) -> Batch:
        """Return all of it, time-major, and forget it."""
        batch = tree_cat(self._chunks)
        self._chunks = []
        return batch

    def get_state(self) -> State:
        """Return the joined content: where chunks were cut is nobody's business."""
        return {"chunks": [tree_cat(self._chunks)] if self._chunks else []}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held, on this buffer's device."""
        self._chunks = [tree_map(lambda leaf: leaf.to(self._device), chunk) for chunk in state["chunks"]]
