"""Packed rows: a ring of steps for every lane (environment copy), fetched by one gather of whole rows.

They lie in memory, on the host or on a device, or in a mapped file, which may be larger than memory.

The ring is cut into slots of consecutive steps. A checkpoint holds each slot as a segment under a key of its own; only
slots that were written since the last one get a new key, so only they cost anything to save.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.buffers.storage.layout import NUMPY_TYPES, WORD, WORD_BYTES, Layout
from rl_lab.core import CheckpointError, Segment, State, Tree, tree_map

SLOT_BYTES = 4 << 20  # small enough to save a half-written one at every checkpoint, large enough to keep files few


class RowStore:
    """`length` steps of `lanes` rows each. A row's index is `step * lanes + lane`; what is in use, the owner knows."""

    def __init__(
        self,
        layout: Layout,
        length: int,
        lanes: int,
        device: torch.device,
        file: Path | None = None,
        *,
        slot_steps: int | None = None,
    ) -> None:
        self.layout, self.length, self.lanes, self.device = layout, length, lanes, device
        self.slot_steps = slot_steps or min(length, max(1, SLOT_BYTES // (lanes * layout.row_bytes)))
        self._num_slots = -(-length // self.slot_steps)
        shape = (length, lanes, layout.words)
        self._words = zeros(shape, WORD, device) if file is None else _mapped_zeros(file, shape)
        self.rows = self._words.view(length * lanes, layout.words)  # [length * lanes, words]
        self._columns = self._host_columns()
        self._keys: list[str | None] = [None] * self._num_slots
        self._is_changed = torch.zeros(self._num_slots, dtype=torch.bool, device=device)  # by rows put in
        self._changed: set[int] = set()  # by steps written

    def write(self, step: int, tree: Tree, count: int) -> None:
        """Write `count` steps [count, lanes, ...] from ring position `step` on, round the end if need be."""
        begin = step % self.length
        if begin + count > self.length:
            head = self.length - begin
            self.write(begin, steps_of(tree, 0, head), head)
            self.write(0, steps_of(tree, head, count), count - head)
            return
        if self._columns is None:
            self.layout.write(self._words[begin : begin + count], tree)
        else:
            for number, value in self.layout.match(tree, (count, self.lanes)).items():
                self._columns[number][begin : begin + count] = value.numpy(force=True)
        self._changed.update(range(begin // self.slot_steps, (begin + count - 1) // self.slot_steps + 1))

    def put(self, index: Tensor, tree: Tree) -> None:
        """Write rows [R, ...] at `index` [R], each row once."""
        words = torch.zeros(len(index), self.layout.words, dtype=WORD, device=self.device)
        self.layout.write(words, tree)
        self.put_words(index, words)

    def patch(self, index: Tensor, tree: Tree, chosen: Tensor | None = None) -> None:
        """Write parts of the rows at `index` [R], or of the `chosen` [R] of them; what `tree` lacks keeps its values.

        A row that is there twice has the same values, and is chosen or not, both times.
        """
        old = self.rows.index_select(0, index)
        words = old if chosen is None else old.clone()
        self.layout.write(words, tree, is_partial=True)
        if chosen is not None:  # a choice of rows would be a shape that the device has to tell
            words = torch.where(chosen.unsqueeze(-1), words, old)
        self.put_words(index, words)

    def put_words(self, index: Tensor, words: Tensor) -> None:
        """Write whole rows [R, words] at `index` [R], each row once."""
        if self.device.type == "cpu":  # NumPy copies whole rows, torch number by number
            self.rows.numpy()[index.numpy()] = words.numpy()
        else:
            self.rows.index_copy_(0, index, words)
        self._is_changed.index_fill_(0, index // (self.lanes * self.slot_steps), True)

    def gather(self, index: Tensor) -> Tree:
        """Return the rows at `index` [...] as a tree of leaves [..., *shape], the caller's own."""
        words = self.rows.index_select(0, index.reshape(-1))
        return self.layout.read(words if index.ndim == 1 else words.view(*index.shape, self.layout.words))

    def step(self, step: int) -> Tree:
        """Return the rows of one step as views [lanes, ...] of the store itself."""
        return self.layout.read(self._words[step % self.length])

    @property
    def fields(self) -> Tree:
        """Return the whole store as a tree of views [length * lanes, ...], to gather single fields from."""
        return self.layout.read(self.rows)

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return self._words.numel() * WORD_BYTES

    def get_state(self) -> State:
        """Return every slot that was ever written, under a new key where it changed since the last call."""
        for slot in {*self._changed, *self._is_changed.nonzero().flatten().tolist()}:
            self._keys[slot] = uuid4().hex
        self._is_changed.zero_()
        self._changed.clear()
        slots = {str(slot): Segment(key, self._slot(slot)) for slot, key in enumerate(self._keys) if key is not None}
        shape = {"length": self.length, "lanes": self.lanes, "slot_steps": self.slot_steps}
        return {"layout": self.layout.get_state(), **shape, "slots": slots}

    @classmethod
    def from_state(
        cls, state: State, length: int, lanes: int, device: torch.device, file: Path | None = None
    ) -> RowStore:
        """Return a store that holds exactly what `state` held."""
        if (state["length"], state["lanes"]) != (length, lanes):
            there, here = f"{state['length']} x {state['lanes']}", f"{length} x {lanes}"
            raise CheckpointError(
                f"the checkpoint's buffer has {there} steps x environments, this config asks for {here}"
            )
        store = cls(Layout.from_state(state["layout"]), length, lanes, device, file, slot_steps=state["slot_steps"])
        for name, segment in state["slots"].items():
            slot = int(name)
            store._slot(slot).copy_(segment.tensor)
            store._keys[slot] = segment.key
        return store

    def _host_columns(self) -> dict[int, NDArray[Any]] | None:
        """Return views [length, lanes, ...] of the fields: NumPy's small copies cost a third of torch's."""
        if self.device.type != "cpu" or any(field.dtype not in NUMPY_TYPES for field in self.layout.fields):
            return None
        return {number: column.numpy() for number, column in self.layout.columns(self._words).items()}

    def _slot(self, slot: int) -> Tensor:
        return self._words[slot * self.slot_steps : (slot + 1) * self.slot_steps]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros that take no memory of the host before they are used.

    NumPy's come from calloc and lie in huge pages where the system has them: random rows are fetched from them in half
    the time that torch's own zeros take.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, dtype=str(dtype).removeprefix("torch.")))


def _mapped_zeros(file: Path, shape: tuple[int, ...]) -> Tensor:
    """Return zeros in a new file; what an earlier process left there is not this store's content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    return torch.from_file(str(file), shared=True, size=math.prod(shape), dtype=WORD).view(shape)


def steps_of(tree: Tree, begin: int, end: int) -> Tree:
    """Return the steps `begin` to `end` of a time-major tree."""
    return tree_map(lambda leaf: leaf[begin:end], tree)
