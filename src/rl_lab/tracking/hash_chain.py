"""What a run did, step by step, as chains of hashes: of observations, actions and rewards, and of the parameters.

Every vector step and every update adds a link, a hash of the link before it and of what is new: two runs agree in a
link only if they agreed in all before it. `steps.chain` and `updates.chain` hold the first four bytes of each. On a
resume they are cut back to the checkpoint, which holds the whole links, so that a resumed run goes on with the same
chains. What is new waits as it is, and many links are made at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_lab.core.buffer import Trajectory
from rl_lab.core.context import Counters
from rl_lab.core.errors import CheckpointError
from rl_lab.core.trees import tree_leaves
from rl_lab.tracking.bits import Windows, rows_of
from rl_lab.tracking.growing_file import GrowingFile
from rl_lab.tracking.run_directory import RunDirectory

Extent = Literal["none", "steps", "all"]
STREAMS = {  # of a step -> what of a trajectory is in it
    "observations": ("observations",),
    "actions": ("actions",),
    "rewards": ("rewards", "terminated", "truncated"),
}
STEP, UPDATE = Struct("<Q4s4s4s"), Struct("<QQ4s")  # env steps, and links; update, env steps, and a link

_WANTED: dict[Extent, tuple[str, ...]] = {"none": (), "steps": ("steps",), "all": ("steps", "updates")}
_LINK_BYTES, _SHOWN_BYTES = 16, 4
_WINDOW = 32_768  # parameters in a link: all of them in turn, because a difference in one soon is in all
_FIRST, _EVERY = 64, 8  # updates that have a link each, and then updates between links where they are short
_MAX_WAITING, _MAX_HELD = 64, 1 << 24  # links, and bytes
Place = tuple[int, ...]
Parts = Sequence[Sequence[Tensor]]  # by stream: its tensors, with a row for each place


class Chain:
    """The links of one or several streams, and the file that they go to."""

    def __init__(self, file: Path, record: Struct, num_streams: int) -> None:
        self.file, self._record = GrowingFile(file), record
        self._links = [bytes(_LINK_BYTES)] * num_streams
        self._places: list[Place] = []  # of the links that wait
        self._waiting: list[Parts] = []
        self._shapes: list[torch.Size] = []
        self._held = 0  # bytes of what waits

    def open(self, state: Mapping[str, Any] | None = None) -> None:
        """Begin, or go on from a checkpoint."""
        self.file.open(0 if state is None else state["size"])
        if state is not None:
            self._links = [bytes.fromhex(link) for link in state["links"]]

    def add(self, places: Sequence[Place], parts: Parts) -> None:
        """Take what is new in the next links, one for each place; many are made at once."""
        shapes = [tensor.shape[1:] for part in parts for tensor in part]
        if shapes != self._shapes:  # of a workflow that collects in its own way
            self.flush()
            self._shapes = shapes
        self._places += places
        self._waiting.append(parts)
        self._held += sum(tensor.nbytes for part in parts for tensor in part)
        if len(self._places) >= _MAX_WAITING or self._held >= _MAX_HELD:
            self.flush()

    def flush(self) -> None:
        """Make the links that wait and write them; waits for a GPU."""
        if not self._places:
            return
        made = [
            _links(link, _joined([parts[number] for parts in self._waiting]), len(self._places))
            for number, link in enumerate(self._links)
        ]
        shown = ([link[:_SHOWN_BYTES] for link in links] for links in made)
        self.file.write(b"".join(map(self._record.pack, *zip(*self._places, strict=True), *shown)))
        self._links = [links[-1] for links in made]
        self._places, self._waiting, self._held = [], [], 0

    def get_state(self) -> dict[str, Any]:
        """Force all links to the disk and return the newest."""
        self.flush()
        return {"size": self.file.sync(), "links": [link.hex() for link in self._links]}


class HashChain:
    """The chains of a run. Order of calls: make it, `open` or `set_state`, then all the others, `close`.

    Args:
        run: Where the files are.
        extent: none, steps (observations, actions and rewards) or all (parameters too).
    """

    def __init__(self, run: RunDirectory, extent: Extent = "none") -> None:
        self._chains = {
            "steps": Chain(run.step_chain_file, STEP, len(STREAMS)),
            "updates": Chain(run.update_chain_file, UPDATE, 1),
        }
        self._wanted = _WANTED[extent]
        self._windows: Windows | None = None

    def open(self) -> None:
        """Begin anew."""
        for name, chain in self._chains.items():
            if name in self._wanted:
                chain.open()
            else:
                chain.file.path.unlink(missing_ok=True)

    def set_state(self, state: Mapping[str, Any]) -> str | None:
        """Go on from a checkpoint: a chain that it does not know is not begun midway. Return what has gone wrong."""
        lost = None
        for name in state:
            chain = self._chains[name]
            try:
                chain.open(state[name])
            except CheckpointError as error:  # it is no part of the result: the run goes on without
                lost = str(error)
            if name not in self._wanted:
                chain.file.close_quietly()
        return lost

    def get_state(self) -> dict[str, Any]:
        """Force all links to the disk and return what the next ones need."""
        return {name: chain.get_state() for name, chain in self._chains.items() if chain.file.is_open}

    def add_steps(self, trajectory: Trajectory | None, env_steps: int, new_steps: int) -> None:
        """Add every vector step of a trajectory of `new_steps` env steps, before which there were `env_steps`."""
        chain = self._chains["steps"]
        if chain.file.is_open and trajectory is not None:
            count = len(trajectory["rewards"])
            places = [(env_steps + new_steps * number // count,) for number in range(1, count + 1)]
            chain.add(places, [_leaves(trajectory, keys) for keys in STREAMS.values()])

    def add_update(self, module: nn.Module, counters: Counters, *, is_long: bool) -> None:
        """Add an update that has changed the module's parameters; of many short ones, every eighth."""
        chain, every = self._chains["updates"], 1 if is_long or counters.updates <= _FIRST else _EVERY
        if chain.file.is_open and counters.updates % every == 0:
            if self._windows is None:
                self._windows = Windows(list(module.parameters()), _WINDOW)
            number = self._windows.turn(counters.updates // every)
            chain.add([(counters.updates, counters.env_steps)], [[number]])

    def flush(self) -> None:
        """Write all links."""
        for chain in self._chains.values():
            if chain.file.is_open:
                chain.flush()

    def close(self) -> None:
        """Write all links and close."""
        try:
            self.flush()
        finally:
            for chain in self._chains.values():
                chain.file.close()


def _leaves(trajectory: Trajectory, keys: Sequence[str]) -> list[Tensor]:
    leaves: list[Any] = []
    for key in keys:
        tree = trajectory.get(key)
        leaves += [tree] if isinstance(tree, Tensor) else [leaf for _, leaf in tree_leaves(tree)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _joined(parts: Sequence[Sequence[Tensor]]) -> bytes:
    """Return the rows of several calls one after another, with those of all tensors of a call side by side."""
    tensors = [torch.cat(each) if len(each) > 1 else each[0] for each in zip(*parts, strict=True)]
    columns = [rows_of(tensor) for tensor in tensors]
    if len(columns) > 1:
        return np.concatenate(columns, axis=1).tobytes()
    return columns[0].tobytes() if columns else b""


def _links(link: bytes, rows: bytes, count: int) -> list[bytes]:
    """Return the links that follow, one for each row."""
    size, links = len(rows) // count, []
    for number in range(count):
        link = blake2b(link + rows[number * size : (number + 1) * size], digest_size=_LINK_BYTES).digest()
        links.append(link)
    return links
