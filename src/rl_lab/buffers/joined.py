"""What several phases have collected into buffers of their own, as one buffer: the data of composed tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_lab.buffers.union import FixedBatch, UnionBuffer
from rl_lab.core import Buffer, ConfigError, Footprint, State


class JoinedBuffer(UnionBuffer):
    """The union of other buffers of the run, with a batch of each; phases collect into these and not into it.

    It holds nothing itself: what it draws from is in checkpoints under the other buffers' names.

    Args:
        of: Names of the other buffers.
    """

    def __init__(self, of: Sequence[str]) -> None:
        if not of or len(set(of)) < len(of):
            raise ConfigError(f"of must name other buffers, each once, not {list(of)}")
        self._names = tuple(of)

    @property
    def joins(self) -> tuple[str, ...]:
        """Return the names of the buffers that it draws from."""
        return self._names

    def meet(self, others: Mapping[str, Buffer]) -> None:
        """Find the buffers that it joins."""
        parts = {name: others[name] for name in self._names}
        sizes = {name: part.batch_size for name, part in parts.items() if isinstance(part, FixedBatch)}
        if lacking := [name for name in parts if name not in sizes or parts[name].joins]:
            raise ConfigError(f"of: buffer {lacking[0]!r} cannot be joined: it has no batch_size of its own")
        total = sum(sizes.values())
        super().__init__(parts, {name: size / total for name, size in sizes.items()}, total)

    def footprint(self) -> tuple[Footprint, ...]:
        """Return that it takes up nothing."""
        return ()

    def attach(self, directory: Path) -> None:
        """Keep no files."""

    def get_state(self) -> State:
        """Return nothing: the others have it all."""
        return {}

    def set_state(self, state: State) -> None:
        """Hold nothing."""
