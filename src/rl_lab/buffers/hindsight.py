"""Hindsight experience replay (Andrychowicz et al., 2017): a step is also one towards a goal that was reached later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rl_lab.buffers.ring import RingBuffer
from rl_lab.buffers.storage.placement import Storage
from rl_lab.buffers.storage.runs import Runs
from rl_lab.buffers.storage.transitions import Annotate
from rl_lab.core import Batch, Box, ConfigError, EnvSpec, Footprint, LabError, Space, State, Trajectory, unknown_name

STRATEGIES = ("future", "final", "episode", "random")
GOALS = ("achieved_goal", "desired_goal")

GoalReward = Callable[[Tensor, Tensor], Tensor]  # (achieved [B, D], desired [B, D]) -> rewards [B]


@dataclass(frozen=True)
class Relabel:
    """Which steps get another goal, and which.

    Args:
        strategy: Achieved when: future (at this step or later), final (at the last one), episode (at any step of the
            episode), random (at any step of any episode).
        probability: Share of the steps that get another goal.
        terminal_reward: Relabelled steps with at least this reward are terminal and no others; null: flags stay.
    """

    strategy: Literal["future", "final", "episode", "random"] = "future"
    probability: float = 0.8
    terminal_reward: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(unknown_name("relabel.strategy", self.strategy, STRATEGIES))
        if not 0.0 <= self.probability <= 1.0:
            raise ConfigError(f"relabel.probability must be between 0 and 1, not {self.probability}")


class HindsightBuffer(RingBuffer):
    """Draws env steps uniformly and gives some of them a goal that was achieved, with the reward that goes with it.

    Observations are dicts with `achieved_goal` and `desired_goal`. A goal comes from the step's own episode, as far as
    that is stored: an episode that still runs counts up to its newest step.

    Args:
        capacity: Env steps to keep, shared by all environment copies.
        batch_size: Transitions per batch.
        reward: Node or `module:function` that gives rewards [B] for achieved and desired goals [B, D].
        relabel: Which steps get another goal, and which.
        gamma: Discount per step; where YAML says none, that of the workflow.
        min_size: Env steps before the first batch; null: batch_size.
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
        reward: GoalReward,
        *,
        relabel: Relabel = Relabel(),  # noqa: B008  (frozen)
        gamma: float = 0.99,
        min_size: int | None = None,
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        if spec is not None:
            _reject_space(spec.observation)
        super().__init__(
            capacity,
            batch_size,
            gamma=gamma,
            min_size=min_size,
            storage=storage,
            device=device,
            num_envs=num_envs,
            spec=spec,
            seed=seed,
        )
        self._runs = Runs(capacity // num_envs, num_envs, self._home)
        self._reward, self._relabelling = reward, relabel

    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps; the oldest make room."""
        obs = trajectory["observations"]
        if not isinstance(obs, Mapping) or not set(GOALS) <= obs.keys():
            found = sorted(obs) if isinstance(obs, Mapping) else "a single tensor"
            raise LabError(f"a hindsight buffer needs observations with {list(GOALS)}, got {found}")
        super().add(trajectory)

    def sample(self) -> Batch:
        """Return `batch_size` transitions, some of them relabelled."""
        self._reject_early()
        index = self._uniform(self.batch_size)
        rows = self._goal_rows(index)
        noise = torch.rand(self.batch_size, generator=self._generator, device=self._home)
        achieved = self._transitions.fields["final_observations"]["achieved_goal"]
        goals, is_relabelled = achieved.index_select(0, rows), noise < self._relabelling.probability
        return self._relabel(self._fetch(index), *self._placement.deliver((goals, is_relabelled)))

    def footprint(self) -> tuple[Footprint, ...]:
        """Return its size once it is full, and that of the bounds of the episodes, which are in memory."""
        rows = super().footprint()
        return (*rows, Footprint(self._runs.num_bytes, self.capacity, self._home)) if rows else ()

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        super().set_state(state)
        ring = self._transitions
        self._runs = Runs(ring.length, ring.lanes, self._home)
        if ring.written:
            self._runs.rebuild(ring.fields["note"].view(ring.length, ring.lanes), ring.written)

    def _annotator(self) -> Annotate:
        return lambda joins, step: self._runs.annotate(joins, step)  # which is made later, and anew by set_state

    def _goal_rows(self, index: Tensor) -> Tensor:
        """Return the rows [B] whose achieved goals are taken for the rows `index` [B]."""
        if self._relabelling.strategy == "random":
            return self._uniform(len(index))
        ring = self._transitions
        place = index.div(ring.lanes, rounding_mode="floor")
        lane, newest = index - place * ring.lanes, ring.written - 1
        first, last = self._runs.bounds(lane, ring.fields["note"].index_select(0, index))
        if self._relabelling.strategy == "future":
            first = newest - (newest - place) % ring.length  # the number of the step itself
        elif self._relabelling.strategy == "final":
            first = last
        first = first.clamp(min=ring.oldest)
        noise = torch.rand(len(index), dtype=torch.float64, generator=self._generator, device=self._home)
        chosen = first + (noise * (last - first + 1)).long()
        return chosen % ring.length * ring.lanes + lane

    def _relabel(self, batch: dict[str, Any], goals: Tensor, is_relabelled: Tensor) -> dict[str, Any]:
        obs, next_obs = batch["observations"], batch["next_observations"]
        rewards = self._reward(next_obs["achieved_goal"], goals)
        if rewards.shape != is_relabelled.shape:
            raise LabError(
                f"the reward of a hindsight buffer returned {list(rewards.shape)} for {list(goals.shape)} goals, "
                f"it must return {list(is_relabelled.shape)}"
            )
        mask = is_relabelled.view(-1, *[1] * (goals.ndim - 1))
        batch["observations"] = {**obs, "desired_goal": torch.where(mask, goals, obs["desired_goal"])}
        batch["next_observations"] = {**next_obs, "desired_goal": torch.where(mask, goals, next_obs["desired_goal"])}
        batch["rewards"] = torch.where(is_relabelled, rewards.to(batch["rewards"].dtype), batch["rewards"])
        terminal_reward = self._relabelling.terminal_reward
        if terminal_reward is not None:
            is_terminal = torch.where(is_relabelled, rewards >= terminal_reward, batch["terminated"])
            batch["terminated"], batch["truncated"] = is_terminal, batch["truncated"] & ~is_terminal
            batch["discounts"] = is_terminal.logical_not() * self._gamma
        return batch


def _reject_space(space: Space) -> None:
    if not isinstance(space, Mapping) or not set(GOALS) <= space.keys():
        found = sorted(space) if isinstance(space, Mapping) else type(space).__name__
        raise ConfigError(f"a hindsight buffer needs observations with {list(GOALS)}, the environment has {found}")
    for name in GOALS:
        leaf = space[name]
        if not isinstance(leaf, Box) or leaf.dtype == torch.uint8:
            raise ConfigError(f"observation {name!r} of a hindsight buffer must be a box of numbers, not {leaf}")
