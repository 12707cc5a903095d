"""Transitions in a ring: a packed row per env step, its pictures in frame stores, fetched together as a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rl_lab.buffers.storage.frame_store import FrameStore, frame_layout, num_frames
from rl_lab.buffers.storage.layout import Layout, expected_row
from rl_lab.buffers.storage.placement import Placement
from rl_lab.buffers.storage.row_store import RowStore, steps_of
from rl_lab.core import ConfigError, EnvSpec, LabError, State, Trajectory, Tree, tree_map

JOINS = "joins_previous"  # of a row: it goes on where the row before it in its lane ended
OWN_KEYS = frozenset({JOINS, "next_observations", "discounts", "indices", "weights"})
PICTURE_DIMS = 5  # [T, N, C, H, W]
OF_LAST = {"final_observations": "next_observations", "terminated": "terminated", "truncated": "truncated"}

Path = tuple[str, ...]  # of a leaf within the observations
Annotate = Callable[[Tensor, int], Tensor]  # (joins [T, N], number of the first step) -> what rows keep beside


class Transitions:
    """A ring of `length` steps for each of `lanes` environments; a row's index is `step % length * lanes + lane`.

    Args:
        length: Steps to keep.
        lanes: Environment copies.
        placement: Where the rows live and the batches go.
        frame_stack: How many frames a picture shows along its first dimension.
        discount: What a row weighs the value of its next observation with; None: whoever asks for batches computes it.
        tracks_joins: Whether rows say that they go on where the one before ended.
        annotate: Computes another field of the rows, `note`.
    """

    def __init__(
        self,
        length: int,
        lanes: int,
        placement: Placement,
        *,
        frame_stack: int,
        discount: float | None,
        tracks_joins: bool,
        annotate: Annotate | None = None,
    ) -> None:
        self.length, self.lanes, self._placement, self._home = length, lanes, placement, placement.home
        self._frame_stack = frame_stack
        # Of the next observation, where the step was not terminal and where it was.
        self._discounts = None if discount is None else torch.tensor([discount, 0.0], device=self._home).unbind()
        self._tracks_joins, self._annotate = tracks_joins, annotate
        self.written = 0  # steps ever stored; a step's number modulo `length` is its place
        self.oldest = 0  # the first step that can still be sampled
        self._rows: RowStore | None = None
        self._frames: dict[Path, FrameStore] = {}
        self._of_first = self._of_last = self._of_both = Layout({}, ())
        self.fields: Tree = {}  # views [length * lanes, ...] of single fields of all rows

    @property
    def rows(self) -> RowStore:
        """Return the packed rows."""
        assert self._rows is not None, "nothing was added yet"
        return self._rows

    @property
    def size(self) -> int:
        """Return how many transitions can be sampled."""
        return (self.written - self.oldest) * self.lanes

    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps, however many."""
        steps, lanes = trajectory["rewards"].shape
        if lanes != self.lanes:
            raise LabError(f"a buffer for num_envs={self.lanes} was given a trajectory of {lanes} environments")
        if trajectory["rewards"].device != self._home:
            trajectory = self._placement.fetch(trajectory)
        if self._rows is None:
            self._build(trajectory)
        most = min([self.length, *(frames.max_steps for frames in self._frames.values())])
        for begin in range(0, steps, most):
            self._add(trajectory if steps <= most else steps_of(trajectory, begin, begin + most))

    def fetch(self, first: Tensor, last: Tensor | None = None) -> dict[str, Any]:
        """Return the batch of the rows `first` [B], which end with the rows `last` [B] when those are others."""
        index = first if last is None else torch.cat((first, last))
        words = self.rows.rows.index_select(0, index)
        is_at_home = self._placement.device == self._home
        batch = self._read(words if is_at_home else self._placement.deliver(words), len(first))
        slots = batch if is_at_home else self._read(words, len(first))
        for path, frames in self._frames.items():
            obs, next_obs = (_leaf(slots[key], path) for key in ("observations", "next_observations"))
            pictures = self._placement.deliver(frames.decode(obs, next_obs))
            batch["observations"] = _replaced(batch["observations"], path, pictures[:, 0])
            batch["next_observations"] = _replaced(batch["next_observations"], path, pictures[:, 1])
        return batch

    @property
    def num_bytes(self) -> int:
        """Return what rows and frames take up."""
        return self.rows.num_bytes + sum(frames.num_bytes for frames in self._frames.values())

    def expected_bytes(self, spec: EnvSpec) -> int:
        """Return what rows and frames will take up, without what `act` adds."""
        row = expected_row(spec)
        total = Layout.of(self._row_like(row)).row_bytes * self.length * self.lanes
        pictures = _pictures(row["observations"])
        if self._frame_stack > 1 and not pictures:
            raise ConfigError(f"frame_stack={self._frame_stack}: {spec.id!r} shows no pictures in uint8 (set 1)")
        for _, picture in pictures:
            frame = frame_layout(tuple(picture.shape[2:]), self._frame_stack)
            total += frame.row_bytes * num_frames(self.length, self.lanes, self._frame_stack)
        return total

    def get_state(self) -> State:
        """Return rows, frames and counters."""
        return {
            "rows": None if self._rows is None else self._rows.get_state(),
            "frames": [{"path": list(path), **frames.get_state()} for path, frames in self._frames.items()],
            "written": self.written,
            "oldest": self.oldest,
        }

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        self.written, self.oldest = state["written"], state["oldest"]
        self._rows, self._frames, self.fields = None, {}, {}
        if state["rows"] is None:
            return
        file = self._placement.file("rows")
        self._open(RowStore.from_state(state["rows"], self.length, self.lanes, self._home, file))
        for frames in state["frames"]:
            path = tuple(frames["path"])
            slots = _leaf(self.fields["observations"], path)[:, 0].view(self.length, self.lanes)
            file = self._placement.file(f"frames-{len(self._frames)}")
            self._frames[path] = FrameStore.from_state(frames, self._frame_stack, slots, self._home, file)

    def _read(self, words: Tensor, batch_size: int) -> dict[str, Any]:
        if len(words) == batch_size:
            return self._of_both.read(words)
        return self._of_first.read(words[:batch_size]) | self._of_last.read(words[batch_size:])

    def _build(self, trajectory: Trajectory) -> None:
        if taken := sorted(OWN_KEYS & trajectory.keys()):
            raise LabError(f"a replay buffer makes {taken} itself, but the trajectory already has them")
        layout = Layout.of(self._row_like(trajectory))
        for path, picture in _pictures(trajectory["observations"]):
            shape, file = tuple(picture.shape[2:]), self._placement.file(f"frames-{len(self._frames)}")
            frames = FrameStore.empty(shape, self._frame_stack, self.length, self.lanes, self._home, file)
            self._frames[path] = frames
        self._open(RowStore(layout, self.length, self.lanes, self._home, self._placement.file("rows")))

    def _open(self, rows: RowStore) -> None:
        self._rows, self.fields = rows, rows.fields
        names = {key: OF_LAST.get(key, key) for key in rows.layout.skeleton if key not in (JOINS, "note")}
        self._of_both = rows.layout.pick(names)
        self._of_first = rows.layout.pick({key: key for key in names if key not in OF_LAST})
        self._of_last = rows.layout.pick(OF_LAST)

    def _add(self, trajectory: Trajectory) -> None:
        steps = len(trajectory["rewards"])
        self.rows.write(self.written, self._encode(trajectory), steps)
        self.written += steps
        self.oldest = max(self.oldest, self.written - self.length)
        for frames in self._frames.values():
            self.oldest = frames.oldest_step(self.oldest, self.written)

    def _encode(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return what rows keep of a trajectory."""
        row = {key: value for key, value in trajectory.items() if key != "is_first"}
        if self._discounts is not None:
            row["discounts"] = torch.where(trajectory["terminated"], self._discounts[1], self._discounts[0])
        follows = []
        for path, frames in self._frames.items():
            obs, final = (_leaf(trajectory[key], path) for key in ("observations", "final_observations"))
            encoded = frames.encode(obs, final, self.written)
            row["observations"] = _replaced(row["observations"], path, encoded.observations)
            row["final_observations"] = _replaced(row["final_observations"], path, encoded.final_observations)
            follows.append(encoded.follows)
        if self._tracks_joins:
            row[JOINS] = self._joins(row, trajectory["is_first"], follows)
        if self._annotate is not None:
            row["note"] = self._annotate(row[JOINS], self.written)
        return row

    def _joins(self, row: Mapping[str, Any], is_first: Tensor, follows: list[Tensor]) -> Tensor:
        """Return which rows go on where the one before ended: not after a cut, even where no flag tells of it."""
        joins = reduce(torch.logical_and, follows, ~is_first)
        before = self.rows.step(self.written - 1)
        is_over = row["terminated"] | row["truncated"]
        joins[1:] &= ~is_over[:-1]
        joins[0] &= ~(before["terminated"] | before["truncated"]) if self.written else torch.zeros_like(joins[0])
        for path, obs in _leaves(row["observations"]):
            if path not in self._frames:
                joins[1:] &= _is_equal(obs[1:], _leaf(row["final_observations"], path)[:-1], 2)
                joins[0] &= _is_equal(obs[0], _leaf(before["final_observations"], path), 1)
        return joins

    def _row_like(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return a tree [1, 1, ...] of the types and shapes that rows keep."""
        row = tree_map(lambda leaf: leaf[:1, :1], {key: x for key, x in trajectory.items() if key != "is_first"})
        slots = torch.zeros(1, 1, self._frame_stack, dtype=torch.int32)
        for path, _ in _pictures(trajectory["observations"]):
            for key in ("observations", "final_observations"):
                row[key] = _replaced(row[key], path, slots)
        if self._discounts is not None:
            row["discounts"] = torch.zeros(1, 1)
        if self._tracks_joins:
            row[JOINS] = torch.zeros(1, 1, dtype=torch.bool)
        if self._annotate is not None:
            row["note"] = torch.zeros(1, 1, dtype=torch.int32)
        return row


def _leaves(tree: Tree, path: Path = ()) -> list[tuple[Path, Any]]:
    """Return (path, leaf) of nested dicts; keys may have dots of their own, so paths are tuples."""
    if isinstance(tree, Mapping):
        return [found for key, part in tree.items() for found in _leaves(part, (*path, key))]
    return [(path, tree)]


def _pictures(observations: Tree) -> list[tuple[Path, Tensor]]:
    """Return the leaves [T, N, C, H, W] that are pictures."""
    return [(path, x) for path, x in _leaves(observations) if x.dtype == torch.uint8 and x.ndim >= PICTURE_DIMS]


def _leaf(tree: Tree, path: Path) -> Tensor:
    return reduce(lambda part, key: part[key], path, tree)


def _replaced(tree: Tree, path: Path, leaf: Tensor) -> Tree:
    return {**tree, path[0]: _replaced(tree[path[0]], path[1:], leaf)} if path else leaf


def _is_equal(a: Tensor, b: Tensor, lead: int) -> Tensor:
    """Compare what lies behind the first `lead` dimensions."""
    same = a == b
    return same.flatten(lead).all(-1) if same.ndim > lead else same
