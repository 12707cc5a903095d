"""What the replay buffers share: a ring of transitions, n-step returns over it, readiness, memory and exact state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.buffers.storage.placement import Placement, Storage
from rl_lab.buffers.storage.transitions import JOINS, Annotate, Transitions
from rl_lab.core import BatchKind, Buffer, CheckpointError, ConfigError, EnvSpec, Footprint, LabError, State, Trajectory


class RingBuffer(Buffer):
    """Keeps the newest `capacity` env steps. Final classes say in `sample` which rows make a batch."""

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        min_size: int | None = None,
        frame_stack: int = 1,
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        annotate = self._annotator()
        self._min_size = batch_size if min_size is None else min_size
        _reject_sizes(capacity, batch_size, self._min_size, n_step, frame_stack, gamma, num_envs)
        self.capacity, self.batch_size, self.n_step = capacity // num_envs * num_envs, batch_size, n_step
        self._placement = Placement(storage, device)
        self._home = self._placement.home
        self._spec, self._gamma = spec, gamma
        self._transitions = Transitions(
            capacity // num_envs,
            num_envs,
            self._placement,
            frame_stack=frame_stack,
            discount=gamma if n_step == 1 else None,
            tracks_joins=n_step > 1 or annotate is not None,
            annotate=annotate,
        )
        if spec is not None:
            self._transitions.expected_bytes(spec)  # refuses a frame_stack that does not fit the pictures
        self._generator = torch.Generator(self._home).manual_seed(seed)
        self._offsets = torch.arange(n_step, device=self._home) * num_envs
        self._powers = torch.tensor([gamma**k for k in range(n_step + 1)], device=self._home)  # [n_step + 1]

    def _annotator(self) -> Annotate | None:
        """Return what computes a further field of the rows; None: there is none."""
        return None

    @property
    def size(self) -> int:
        """Return how many env steps can be sampled."""
        return self._transitions.size

    @property
    def needed_steps(self) -> int:
        """Return `min_size`."""
        return self._min_size

    @property
    def batch_rows(self) -> int:
        """Return `batch_size`."""
        return self.batch_size

    @property
    def batch_kind(self) -> BatchKind:
        """Return that they are env steps with what these led to."""
        return "transitions"

    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps; the oldest make room."""
        self._transitions.add(trajectory)

    def is_ready(self) -> bool:
        """Return whether there are `min_size` env steps."""
        return self.size >= self._min_size

    def statistics(self) -> dict[str, float]:
        """Return how much it holds."""
        return {"size": float(self.size)}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return its size once it is full, without what `act` adds before that is known."""
        if self._transitions.written:
            num_bytes = self._transitions.num_bytes
        elif self._spec is not None:
            num_bytes = self._transitions.expected_bytes(self._spec)
        else:
            return ()
        return (Footprint(num_bytes, self.capacity, self._home, self._placement.is_on_disk),)

    def attach(self, directory: Path) -> None:
        """Learn where its mapped files may lie."""
        self._placement.attach(directory)

    def get_state(self) -> State:
        """Return transitions and the sampler's state."""
        return {"transitions": self._transitions.get_state(), "rng": self._generator.get_state()}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        if state["rng"].shape != self._generator.get_state().shape:
            raise CheckpointError(
                f"the checkpoint's buffer drew its batches on another kind of device than {self._home.type!r}"
            )
        self._transitions.set_state(state["transitions"])
        self._generator.set_state(state["rng"].cpu())

    def _reject_early(self) -> None:
        if not self.is_ready():
            raise LabError(f"a replay buffer was sampled with {self.size} env steps, it needs {self._min_size}")

    def _uniform(self, count: int) -> Tensor:
        """Return `count` rows [count], each env step as likely as any other."""
        ring = self._transitions
        drawn = torch.randint(ring.size, (count,), generator=self._generator, device=self._home)
        if ring.oldest % ring.length == 0 or ring.written - ring.oldest == ring.length:
            return drawn  # the rows in use are the first ones, or all
        return (drawn + ring.oldest % ring.length * ring.lanes) % self.capacity

    def _fetch(self, index: Tensor) -> dict[str, Any]:
        """Return the batch of these rows, over `n_step` steps or up to the end of the episode or of what is stored."""
        if self.n_step == 1:
            batch = self._transitions.fetch(index)
        else:
            rewards, last, discounts = self._look_ahead(index)
            batch = self._transitions.fetch(index, last)
            deliver = self._placement.deliver
            batch["rewards"] = deliver(rewards)
            batch["discounts"] = deliver(discounts) * ~batch["terminated"]
        batch["indices"] = self._placement.deliver(index)
        return batch

    def _look_ahead(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return discounted rewards, the rows of the last steps used and `gamma ** steps`, [B] each."""
        ring, fields = self._transitions, self._transitions.fields
        window = (index[:, None] + self._offsets) % self.capacity  # [B, n_step]
        later = window[:, 1:]
        goes_on = fields[JOINS].index_select(0, later.reshape(-1)).view(later.shape)
        goes_on &= later.div(ring.lanes, rounding_mode="floor") != ring.written % ring.length  # behind the newest row
        used = goes_on.cumprod(1)  # [B, n_step - 1]
        rewards = fields["rewards"].index_select(0, window.view(-1)).view(window.shape)
        total = rewards[:, 0] + (rewards[:, 1:] * self._powers[1:-1] * used).sum(1)
        count = used.sum(1)
        return total, window.gather(1, count[:, None]).squeeze(1), self._powers[1:].index_select(0, count)


def _reject_sizes(
    capacity: int, batch_size: int, min_size: int, n_step: int, frame_stack: int, gamma: float, num_envs: int
) -> None:
    given = {"capacity": capacity, "batch_size": batch_size, "min_size": min_size, "n_step": n_step}
    for name, value in {**given, "frame_stack": frame_stack, "num_envs": num_envs}.items():
        if value < 1:
            raise ConfigError(f"{name} of a buffer must be 1 or more, not {value}")
    length = capacity // num_envs
    if length < 1:
        raise ConfigError(f"capacity={capacity} is less than one env step for each of num_envs={num_envs} environments")
    if min_size > length * num_envs:
        raise ConfigError(
            f"min_size={min_size} (batch_size when it is null) is more than capacity={length * num_envs} holds"
        )
    if n_step > length:
        raise ConfigError(
            f"n_step={n_step} is more than the {length} steps of each copy that capacity={capacity} keeps"
        )
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma of a buffer must be between 0 and 1, not {gamma}")
