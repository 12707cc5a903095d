"""Diffusion Policy (Chi et al., 2023, https://arxiv.org/abs/2303.04137): imitation by drawing chunks of actions.

The policy learns from demonstrations what chunks of actions follow the last few observations. To act it draws a chunk
out of noise, does the first part of it and draws again. What it learns is a distribution: where some demonstrations go
left and others right, it does one or the other, and not their mean. How noise becomes actions is a component: diffusion
or, as in pi0, flow matching. An average of the weights acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rl_lab.components.accumulation import Accumulating, PartedUpdate, parts_of
from rl_lab.components.action_chunks import ChunkWorkflow, RecedingHorizon, read_chunks, reject_long_horizons
from rl_lab.components.broadcast import Broadcast
from rl_lab.components.chunk_policy import ChunkPolicy, bound_policy
from rl_lab.components.continuous_actions import reject_actions
from rl_lab.components.learner import Learner, trained
from rl_lab.components.unit_range import ObservationRange, UnitRange
from rl_lab.components.weight_average import WeightAverage
from rl_lab.core import (
    Actions,
    Batch,
    Box,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    WorkflowContext,
    flat_dim,
    hook,
)
from rl_lab.core.ranges import Count, Natural, Positive, UnitInterval
from rl_lab.ops.schedules import warm_cosine


class DiffusionPolicy(Accumulating, ChunkWorkflow):
    """Imitation for continuous actions; components: generator (Diffusion or FlowMatching), encoder? (ResNet).

    Args:
        observation_horizon: Observations that a chunk of actions depends on; the buffer's `history`.
        prediction_horizon: Actions of a chunk, from the newest observation on; the buffer's `chunk_length`.
        action_horizon: Actions of a chunk that are done before the next one is drawn.
        average_power: How fast the average of the weights slows down: it keeps `1 - (1 + updates)^-power` of itself.
        average_most: Largest share that it keeps.
        learning_rate_schedule: cosine (to 0 at the end of the phase) or constant.
        warmup_updates: Updates until the learning rate is reached.
        mask_padding: Learn nothing from steps after the end of an episode; false: its last action is repeated there.
        max_grad_norm: Longest gradient; null leaves it free.
        accumulation: Parts of a batch whose gradients are added up one after another, which takes less memory.
    """

    imitates = reduces_over_ranks = True

    def __init__(
        self,
        *,
        observation_horizon: Count = 2,
        prediction_horizon: Count = 16,
        action_horizon: Count = 8,
        average_power: UnitInterval = 0.75,
        average_most: UnitInterval = 0.9999,
        learning_rate_schedule: Literal["cosine", "constant"] = "cosine",
        warmup_updates: Natural = 500,
        mask_padding: bool = False,
        max_grad_norm: Positive | None = None,
        accumulation: Count = 1,
    ) -> None:
        super().__init__()
        if action_horizon > prediction_horizon:
            raise ConfigError(
                f"algorithm.action_horizon: {action_horizon} actions are more than prediction_horizon="
                f"{prediction_horizon}, the length of a chunk"
            )
        self.observation_horizon, self.prediction_horizon = observation_horizon, prediction_horizon
        self.action_horizon, self.mask_padding, self.max_grad_norm = action_horizon, mask_padding, max_grad_norm
        self.average_power, self.average_most, self.accumulation = average_power, average_most, accumulation
        self.learning_rate_schedule, self.warmup_updates = learning_rate_schedule, warmup_updates

    def initialize(self, context: WorkflowContext) -> None:
        """Bind the generator to the task, copy the weights that act and build the optimiser `policy`."""
        self._spec, self._device, self._sources = context.spec, context.device, context.buffers
        self._ranks = context.ranks
        space = context.spec.action
        if not isinstance(space, Box):
            reject_actions(context.spec, "DiffusionPolicy")
        reject_long_horizons(context.spec, observations=self.observation_horizon, actions=self.prediction_horizon)
        self.action_dim, self._action_shape, self._bounds = flat_dim(space), space.shape, (space.low, space.high)
        self.observation_range = ObservationRange(context.spec.observation).to(self._device)
        self.action_range = UnitRange(self.action_dim).to(self._device)
        horizons = {"length": self.prediction_horizon, "history": self.observation_horizon}
        policy = bound_policy(context.components, self.observation_range, action_dim=self.action_dim, **horizons)
        self.policy = policy.to(self._device)
        self.average = WeightAverage(self.policy, self.average_power, self.average_most)
        self.learner = Learner(
            *(context, "policy", trained(self.policy)),
            lr=1e-4,
            max_grad_norm=self.max_grad_norm,
            undecayed=self.policy.generator.network.undecayed(),
        )
        self.num_updates, self._has_ranges = 0, False
        ranges = {"observation_range": self.observation_range, "action_range": self.action_range}
        self._loss, self._broadcast = context.fuse(self.policy.loss), Broadcast(self.policy, ranges)
        self._update = PartedUpdate(context, self._learn)
        self._horizon = RecedingHorizon(
            self._plan, history=self.observation_horizon, num_actions=self.action_horizon, context=context
        )

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the next action of the running chunk; where it is done or an episode begins, draw the next chunk."""
        actions, carry = self._horizon(obs, carry, is_first)
        return actions, {}, carry

    def _plan(self, seen: Observation) -> Tensor:
        """Draw chunks [n, prediction_horizon, ...] for observations [n, observation_horizon, ...]."""
        vectors, pictures = self.observation_range(seen)
        noise = torch.randn(len(vectors), self.prediction_horizon, self.action_dim, device=self._device)
        policy: ChunkPolicy = self.average.module  # type: ignore[assignment]
        drawn = policy.sample((vectors, pictures), noise).clamp(-1.0, 1.0)
        return self.action_range.inverse(drawn).clamp(*self._bounds).reshape(*drawn.shape[:2], *self._action_shape)

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the loss of one batch of chunks; the first one measures in what limits the demonstrations lie."""
        horizons = {"history": self.observation_horizon, "chunk_length": self.prediction_horizon}
        chunks = read_chunks(batch, self._spec, **horizons)
        if not self._has_ranges:
            self._fit_ranges(phase)
        rate = self._set_rate(phase)
        self.num_updates += 1
        return {**self._update(chunks), "learning_rate": rate}

    def _fit_ranges(self, phase: Phase) -> None:
        """Take the limits of all that the phase's buffer holds; weights that come with theirs keep them."""
        if not self.action_range.is_fitted:
            buffer = self._sources[phase.buffer or ""]
            self.observation_range.fit(*buffer.limits("observations"))
            self.action_range.fit(*buffer.limits("actions"))
            self._ranks.share_([*self.observation_range.buffers(), *self.action_range.buffers()])
        self._has_ranges = True

    def _set_rate(self, phase: Phase) -> float:
        """Set and return the learning rate."""
        progress = phase.progress if self.learning_rate_schedule == "cosine" else 0.0
        rate = warm_cosine(self.learner.initial_rate, progress, (self.num_updates + 1) / max(1, self.warmup_updates))
        self.learner.set_rate(rate)
        return rate

    def _learn(self, chunks: Batch) -> dict[str, Tensor]:
        whole = self._num_learned(chunks)
        is_all = self.accumulation == 1 and (self._ranks.size == 1 or not self.mask_padding)
        if self.mask_padding:  # more steps may count in one rank than in another
            whole = self._ranks.mean_(whole.float())

        def loss(part: Batch) -> Tensor:
            seen = self.observation_range(part["observations"])
            actions = self.action_range(part["actions"].reshape(*part["is_pad"].shape, self.action_dim))
            mean: Tensor = self._loss(seen, actions, (~part["is_pad"]).float() if self.mask_padding else None)
            return mean if is_all else mean * (self._num_learned(part) / whole)

        total, norm = self.learner.descend_over(loss, parts_of(chunks, self.accumulation))
        self.average.update(self.policy)
        return {"loss": total, "grad_norm": norm}

    def _num_learned(self, chunks: Batch) -> Any:
        """Return how many steps of chunks count in the loss."""
        pad = chunks["is_pad"]
        return (~pad).sum() if self.mask_padding else pad.numel()

    def broadcast(self) -> dict[str, Tensor]:
        """Return what an actor needs: the ranges, and of the weights that act those that learn."""
        return self._broadcast.tensors(self.average.module)

    def receive(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `broadcast` returned elsewhere."""
        self._broadcast.take(self.average.module, tensors)

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the warm-up counts."""
        return {"num_updates": self.num_updates, **super().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        super().set_state(state)
        self.num_updates, self._has_ranges = state["num_updates"], False
