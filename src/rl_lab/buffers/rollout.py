"""On-policy storage: everything that was collected since the last update, once."""

from __future__ import annotations

import torch

from rl_lab.buffers.storage.layout import expected_row
from rl_lab.core import Batch, BatchKind, Buffer, EnvSpec, Footprint, State, Trajectory, tree_cat, tree_leaves, tree_map


class RolloutBuffer(Buffer):
    """Keeps chunks in the order they came; `sample` joins them in time and empties the buffer.

    Args:
        device: Where restored chunks go; the lab gives it.
        num_envs: Environment copies; the lab gives it.
        spec: What a step looks like; the lab gives it.
        collect_steps: Vector steps that a cycle of its phase collects; the lab gives it.
    """

    def __init__(
        self,
        *,
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        collect_steps: int = 0,
    ) -> None:
        self._device, self._spec = torch.device(device), spec
        self._capacity = collect_steps * num_envs
        self._chunks: list[Trajectory] = []

    @property
    def size(self) -> int:
        """Return how many env steps it holds."""
        return sum(chunk["rewards"].numel() for chunk in self._chunks)

    @property
    def is_on_policy(self) -> bool:
        """Return True: what it holds is learned from once, at once."""
        return True

    @property
    def batch_kind(self) -> BatchKind:
        """Return that they are all that was collected, time-major."""
        return "rollouts"

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

    def footprint(self) -> tuple[Footprint, ...]:
        """Return the size of what a cycle collects, without what `act` adds."""
        if self._spec is None or self._capacity == 0:
            return ()
        row_bytes = sum(leaf.nbytes for _, leaf in tree_leaves(expected_row(self._spec)))
        sized_by = "env steps that a cycle collects (training.phases)"
        return (Footprint(row_bytes * self._capacity, self._capacity, self._device, sized_by=sized_by),)

    def get_state(self) -> State:
        """Return the joined content: where chunks were cut is nobody's business."""
        return {"chunks": [tree_cat(self._chunks)] if self._chunks else []}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held, on this buffer's device."""
        self._chunks = [tree_map(lambda leaf: leaf.to(self._device), chunk) for chunk in state["chunks"]]
