"""Whole episodes, chosen by their return: for imitation, rejection sampling and action chunks."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.buffers.storage.episode_filter import EpisodeFilter
from rl_lab.buffers.storage.layout import Layout, expected_row
from rl_lab.buffers.storage.open_episodes import OpenEpisodes
from rl_lab.buffers.storage.placement import Placement, Storage
from rl_lab.buffers.storage.row_store import RowStore
from rl_lab.core import (
    Batch,
    BatchKind,
    Buffer,
    ConfigError,
    EnvSpec,
    Footprint,
    LabError,
    State,
    Trajectory,
    Tree,
    tree_map,
)

NOT_STORED = ("final_observations", "is_first", "truncated")
PICTURE_DIMS = 4  # [R, C, H, W]


class EpisodeBuffer(Buffer):
    """Keeps accepted episodes, evicts the oldest ones whole, and samples their steps with equal chances.

    A batch has `observations` [B, ...] (with `history` H: [B, H, ...], oldest first, the first one repeated),
    `actions`, `rewards`, `next_observations`, `terminated`, `truncated`, `returns` (reward to go), `episode_returns`
    and `step` (how many came before in the episode). With `chunk_length` C, actions and rewards are [B, C, ...] of the
    steps that follow in the same episode, `is_pad` [B, C] says where it was over (the last action repeated, no
    reward), and what comes next is what follows the chunk.

    Args:
        capacity: Rows to keep: one per env step and one per episode.
        batch_size: Steps per batch.
        chunk_length: Actions per sample; null: one, without a dimension of its own.
        history: Observations per sample; null: one, without a dimension of its own.
        min_return: Episodes below it are refused.
        top_share: Share of the last 100 episodes that is accepted, best returns first; null: all.
        require_info: Name of an info that must be positive at the last step (success).
        storage: device (where training happens), host (its memory) or disk (mapped files, may be larger than memory).
        device: Where batches go; the lab gives it.
        num_envs: Environment copies; the lab gives it.
        spec: What a step looks like; the lab gives it.
        seed: Of the sampler; the lab gives it.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        *,
        chunk_length: int | None = None,
        history: int | None = None,
        min_return: float | None = None,
        top_share: float | None = None,
        require_info: str | None = None,
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        given = {"capacity": capacity, "batch_size": batch_size, "chunk_length": chunk_length, "history": history}
        for name, value in given.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} of an episode buffer must be 1 or more, got {value}")
        limit = None if spec is None else spec.max_episode_steps
        if limit is not None and limit + 1 > capacity:
            raise ConfigError(
                f"capacity={capacity} of an episode buffer is less than one episode: {limit} steps, {limit + 1} rows"
            )
        self.capacity, self.batch_size = capacity, batch_size
        self.chunk_length, self.history = chunk_length, history
        self._filter = EpisodeFilter(min_return, top_share, require_info)
        self._placement, self._spec = Placement(storage, device), spec
        self._home = self._placement.home
        self._generator = torch.Generator(self._home).manual_seed(seed)
        self._open, self._open_steps = OpenEpisodes(num_envs, capacity - 1), num_envs * (limit or 0)
        self._store: RowStore | None = None
        self._episodes: deque[tuple[int, int]] = deque()  # (number of the first row, steps), oldest first
        self._rows, self._steps, self._gone = 0, 0, 0  # rows and steps ever kept, and steps of evicted episodes
        self._index = torch.zeros(capacity, dtype=torch.int64, device=self._home)  # ring: step number -> row number

    @property
    def size(self) -> int:
        """Return how many env steps it holds."""
        return self._steps - self._gone

    @property
    def batch_kind(self) -> BatchKind:
        """Return that they are env steps with what an episode tells of them."""
        return "steps of episodes"

    def add(self, trajectory: Trajectory) -> None:
        """Take `T` vector steps; episodes that end in them are kept or refused."""
        for episode in self._open.take(self._placement.fetch(trajectory)):
            if self._filter.accepts(episode):
                self._keep(episode)

    def is_ready(self) -> bool:
        """Return whether an episode was accepted."""
        return self.size > 0

    def sample(self) -> Batch:
        """Return steps, each as likely as any other."""
        if self._store is None or not self.is_ready():
            counts = self._filter.statistics()
            raise LabError(f"an episode buffer was sampled before it had accepted an episode ({counts})")
        drawn = torch.rand(self.batch_size, dtype=torch.float64, generator=self._generator, device=self._home)
        step = self._gone + (drawn * self.size).long()
        row = self._index[step % self.capacity]
        here = self._at(row)
        ahead = (self.chunk_length or 1) * torch.ones_like(row)
        then = self._at(row + torch.minimum(ahead, here["left"]))
        batch = {**here, "next_observations": then["observations"], "indices": row % self.capacity}
        is_over = then["left"] == 0
        batch |= {"terminated": is_over & here["ends_terminated"], "truncated": is_over & ~here["ends_terminated"]}
        del batch["ends_terminated"], batch["left"]
        if self.history is not None:
            batch["observations"] = self._look_back(row, here["step"])
            batch["next_observations"] = self._look_back(row + torch.minimum(ahead, here["left"]), then["step"])
        if self.chunk_length is not None:
            batch |= self._look_ahead(row, here["left"])
        return self._placement.deliver(batch)

    def limits(self, key: str) -> tuple[Any, Any]:
        """Return the lowest and the highest of each number of `key` over all steps; of pictures None."""
        assert self._store is not None, "an episode buffer has no limits before it has an episode"
        steps = torch.arange(self._gone, self._steps, device=self._home) % self.capacity
        rows, leaves = self._index[steps] % self.capacity, self._store.fields[key]
        held = tree_map(lambda leaf: None if is_picture(leaf) else leaf.index_select(0, rows), leaves)
        return self._placement.deliver((tree_map(lambda x: x.amin(0), held), tree_map(lambda x: x.amax(0), held)))

    def statistics(self) -> dict[str, float]:
        """Return what it holds and what the filter did."""
        held = {"size": float(self.size), "episodes": float(len(self._episodes))}
        return {**held, **self._filter.statistics()}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return its size once it is full, and that of open episodes and step numbers, which are in memory."""
        if self._spec is None:
            return ()
        episode = tree_map(lambda leaf: leaf[:, 0], expected_row(self._spec))
        row_bytes = Layout.of(_rows(episode), lead=1).row_bytes
        rows = Footprint(row_bytes * self.capacity, self.capacity, self._home, self._placement.is_on_disk)
        beside = row_bytes * self._open_steps + self._index.nbytes
        return (rows, Footprint(beside, self.capacity, self._home))

    def attach(self, directory: Path) -> None:
        """Learn where its mapped file may lie."""
        self._placement.attach(directory)

    def get_state(self) -> State:
        """Return the episodes, those still open, the filter and the sampler's state."""
        return {
            "store": None if self._store is None else self._store.get_state(),
            "open": self._open.get_state(),
            "filter": self._filter.get_state(),
            "episodes": [list(episode) for episode in self._episodes],
            "counters": [self._rows, self._steps, self._gone],
            "index": self._index,
            "rng": self._generator.get_state(),
        }

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        store, file = state["store"], self._placement.file("rows") if state["store"] is not None else None
        self._store = None if store is None else RowStore.from_state(store, self.capacity, 1, self._home, file)
        self._open.set_state(state["open"], self._home)
        self._filter.set_state(state["filter"])
        self._episodes = deque((row, steps) for row, steps in state["episodes"])
        self._rows, self._steps, self._gone = state["counters"]
        self._index = state["index"].to(self._home, copy=True)
        self._generator.set_state(state["rng"])

    def _keep(self, episode: Trajectory) -> None:
        rows = _rows(episode)
        count = len(rows["rewards"])
        if count > self.capacity:
            raise LabError(f"an episode of {count - 1} steps ({count} rows) is longer than capacity={self.capacity}")
        while self._episodes and self._rows + count - self._episodes[0][0] > self.capacity:
            self._gone += self._episodes.popleft()[1]
        if self._store is None:
            layout = Layout.of(rows, lead=1)
            self._store = RowStore(layout, self.capacity, 1, self._home, self._placement.file("rows"))
        self._store.write(self._rows, tree_map(lambda leaf: leaf[:, None], rows), count)
        numbers = self._starts(episode)
        places = self._steps + torch.arange(len(numbers), device=self._home)
        self._index[places % self.capacity] = self._rows + numbers
        self._episodes.append((self._rows, len(numbers)))
        self._rows, self._steps = self._rows + count, self._steps + len(numbers)

    def _starts(self, episode: Trajectory) -> Tensor:
        """Return the numbers of the steps that samples may begin with."""
        return torch.arange(len(episode["rewards"]), device=self._home)

    def _at(self, row: Tensor) -> Any:
        assert self._store is not None
        return self._store.gather(row % self.capacity)

    def _look_back(self, row: Tensor, step: Tensor) -> Tree:
        """Return the last observations of the same episode, oldest first, its first one repeated."""
        assert self.history is not None
        back = torch.arange(self.history - 1, -1, -1, device=self._home)
        return self._at(row[:, None] - torch.minimum(back, step[:, None]))["observations"]

    def _look_ahead(self, row: Tensor, left: Tensor) -> dict[str, Tensor]:
        """Return the next actions and rewards of the same episode, and where it was over."""
        assert self.chunk_length is not None
        ahead = torch.arange(self.chunk_length, device=self._home)
        is_pad = ahead >= left[:, None]
        rows = self._at(row[:, None] + torch.minimum(ahead, left[:, None] - 1))
        rewards = rows["rewards"].masked_fill(is_pad, 0.0)
        return {"actions": rows["actions"], "rewards": rewards, "is_pad": self._padding(is_pad, rows)}

    def _padding(self, is_over: Tensor, rows: Any) -> Tensor:
        """Return where [B, C] nothing is learned from chunks of these rows."""
        return is_over


def is_picture(rows: Tensor) -> bool:
    """Return whether these are pictures [R, C, H, W]."""
    return rows.dtype == torch.uint8 and rows.ndim >= PICTURE_DIMS


def _rows(episode: Trajectory) -> dict[str, Any]:
    """Return the T steps of an episode and a row for where it led, with what a sampler must know of its place."""
    length = episode["rewards"].shape[0]
    final = tree_map(lambda leaf: leaf[-1:], episode["final_observations"])
    stored = {key: value for key, value in episode.items() if key not in (*NOT_STORED, "terminated", "observations")}
    padded = tree_map(lambda leaf: torch.cat([leaf, torch.zeros_like(leaf[:1])]), stored)
    rewards = padded["rewards"]
    step = torch.arange(length + 1, device=rewards.device)
    return {
        "observations": tree_map(lambda leaf, last: torch.cat([leaf, last]), episode["observations"], final),
        **padded,
        "returns": rewards.flip(0).cumsum(0).flip(0),
        "episode_returns": rewards.sum().expand(length + 1),
        "ends_terminated": episode["terminated"][-1].expand(length + 1),
        "step": step,
        "left": length - step,
    }
