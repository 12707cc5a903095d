"""What workflows that learn chunks of actions have in common: a policy in the environment's own numbers.

Supervised fine-tuning and rejection sampling differ in what they learn from and how much it weighs. What learns is the
same, and is here: the ranges of observations and actions, a policy (a small network or a whole VLA), the average of its
weights, plans, and the tensors that actors need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.accumulation import Accumulating, PartedUpdate, parts_of
from rl_lab.components.action_chunks import ChunkWorkflow
from rl_lab.components.broadcast import Broadcast
from rl_lab.components.chunk_policy import ChunkPolicy, bound_policy
from rl_lab.components.continuous_actions import reject_actions
from rl_lab.components.learner import Learner
from rl_lab.components.unit_range import ObservationRange, UnitRange
from rl_lab.components.weight_average import WeightAverage
from rl_lab.core import Batch, Box, Buffer, Observation, WorkflowContext, flat_dim
from rl_lab.core.ranks import Ranks
from rl_lab.core.shards import Block, Shards

WEIGHTS = "chunk_weights"  # beside chunks that are taken in parts


class ChunkAgent(nn.Module):
    """Learns chunks of actions and draws them; components: `generator`, and `encoder` where it needs one.

    Args:
        context: Of the workflow.
        observation_horizon: Observations that a chunk depends on.
        prediction_horizon: Actions of a chunk, from the newest observation on.
        average_power: How fast the average of the weights, which acts, slows down: it keeps
            `1 - (1 + updates)^-power` of itself. None: no average, the policy itself acts.
        average_most: Largest share that the average keeps.
        shard_weights: Whether each rank of the run holds a part of the policy's weights instead of all.
    """

    def __init__(
        self,
        context: WorkflowContext,
        *,
        observation_horizon: int,
        prediction_horizon: int,
        average_power: float | None = 0.75,
        average_most: float = 0.9999,
        shard_weights: bool = False,
    ) -> None:
        super().__init__()
        space = context.spec.action
        if not isinstance(space, Box):
            reject_actions(context.spec, "a policy of chunks")
        self.action_dim, self._shape, self._bounds = flat_dim(space), space.shape, (space.low, space.high)
        self._length, self._device, self._ranks = prediction_horizon, context.device, context.ranks
        self.observation_range = ObservationRange(context.spec.observation).to(self._device)
        self.action_range = UnitRange(self.action_dim).to(self._device)
        horizons = {"length": prediction_horizon, "history": observation_horizon}
        policy = bound_policy(context.components, self.observation_range, action_dim=self.action_dim, **horizons)
        self.policy = policy.to(self._device)
        self.weight_average = None
        if average_power is not None:
            self.weight_average = WeightAverage(self.policy, average_power, average_most)
        self.shards = _sharded(self.policy, context.ranks) if shard_weights else None
        self._loss = context.fuse(self.policy.loss)
        ranges = {"observation_range": self.observation_range, "action_range": self.action_range}
        self._broadcast = Broadcast(self.policy, ranges)

    @property
    def acting(self) -> ChunkPolicy:
        """Return the policy that acts: the average where there is one."""
        average = self.weight_average
        return self.policy if average is None else average.module  # type: ignore[return-value]

    def trained(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that learn; where they are sharded, this rank's part of each."""
        if self.shards is not None:
            return iter(self.shards.parameters)
        return (parameter for parameter in self.policy.parameters() if parameter.requires_grad)

    def fit(self, buffer: Buffer) -> None:
        """Take the limits of all that the buffer holds; weights that came with theirs keep them."""
        if not self.action_range.is_fitted:
            self.observation_range.fit(*buffer.limits("observations"))
            self.action_range.fit(*buffer.limits("actions"))
            self._ranks.share_([*self.observation_range.buffers(), *self.action_range.buffers()])

    def loss(self, chunks: Batch, weights: Tensor | None = None) -> Tensor:
        """Return the loss of chunks, as `read_chunks` gives them; `weights` is for each [B], or each step of each."""
        seen = self.observation_range(chunks["observations"])
        actions = self.action_range(chunks["actions"].reshape(*chunks["is_pad"].shape, self.action_dim))
        return self._loss(seen, actions, _of_steps(weights, self._length))

    def descend(
        self, learner: Learner, chunks: Batch, weights: Tensor | None = None, num_parts: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Take one step down the loss and move the average; return the loss and the gradient's norm before clipping.

        With several parts, gradients of one after another are added up: the same loss for less memory. Weights count
        over all ranks alike: each divides by the mean of the ranks' sums.
        """
        weights = _of_steps(weights, self._length)
        if weights is None:
            weights = torch.ones_like(chunks["is_pad"], dtype=torch.float32)
        whole = self._ranks.mean_(weights.sum().clamp(min=1.0))

        def loss(part: Batch) -> Tensor:
            own = part[WEIGHTS]
            return self.loss(part, own) * (own.sum().clamp(min=1.0) / whole)

        total, norm = learner.descend_over(loss, parts_of({**chunks, WEIGHTS: weights}, num_parts))
        self.average()
        return total, norm

    def average(self) -> None:
        """Move the average towards the weights, after a step."""
        if self.weight_average is not None:
            self.weight_average.update(self.policy)

    def plan(self, seen: Observation) -> Tensor:
        """Draw chunks [n, prediction_horizon, ...] for observations [n, observation_horizon, ...]."""
        read = self.observation_range(seen)
        noise = torch.randn(len(read[0]), self._length, self.action_dim, device=self._device)
        drawn = self.acting.sample(read, noise).clamp(-1.0, 1.0)
        return self.action_range.inverse(drawn).clamp(*self._bounds).reshape(*drawn.shape[:2], *self._shape)

    def broadcast(self) -> dict[str, Tensor]:
        """Return what an actor that holds the same base needs: the ranges, and of the acting policy what learns."""
        return self._broadcast.tensors(self.acting)

    def receive(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what another agent's `broadcast` returned; raises CheckpointError for one with another base."""
        self._broadcast.take(self.acting, tensors)


class AgentWorkflow(Accumulating, ChunkWorkflow):
    """A workflow of one agent: actors need what it broadcasts, and batches can be taken in parts.

    `initialize` sets `agent` and calls `_bind_update`; updates call `_updated`.
    """

    agent: ChunkAgent

    def _bind_update(self, context: WorkflowContext, learn: Callable[[Batch], dict[str, Tensor]]) -> None:
        self.num_updates, self._has_ranges = 0, False
        self._update = PartedUpdate(context, learn)

    def _updated(self, chunks: Batch) -> dict[str, Tensor]:
        self.num_updates += 1
        learnt: dict[str, Tensor] = self._update(chunks)
        return learnt

    def _fit(self, buffer: Buffer) -> None:
        """Measure before the first update in what limits the data lies."""
        if not self._has_ranges:
            self.agent.fit(buffer)
            self._has_ranges = True

    @property
    def shards(self) -> Shards | None:
        """Return the part of the weights that this rank holds, where they are sharded."""
        return self.agent.shards

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the learning rate follows, and in how many parts a batch is taken."""
        return {"num_updates": self.num_updates, **super().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        super().set_state(state)
        self.num_updates, self._has_ranges = state["num_updates"], False  # which lie in the agent, or are measured anew

    def broadcast(self) -> dict[str, Tensor]:
        """Return what learns, and the limits of the data: an actor has the rest of the policy."""
        return self.agent.broadcast()

    def receive(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `broadcast` returned elsewhere."""
        self.agent.receive(tensors)


def _sharded(policy: ChunkPolicy, ranks: Ranks) -> Shards | None:
    """Leave each rank its part of a policy's weights."""
    return ranks.shard(Block(policy, ("loss", "sample")), policy.generator.network.shardable())


def _of_steps(weights: Tensor | None, length: int) -> Tensor | None:
    """Return weights [B, length] of steps, of those or of weights [B] of chunks."""
    return weights if weights is None or weights.ndim == 2 else weights[:, None].expand(-1, length)
