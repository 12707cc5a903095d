"""Supervised fine-tuning of a policy of action chunks, as pi0 is tuned to a robot (https://arxiv.org/abs/2410.24164).

The policy is a VLA or any other network that `FlowMatching` or `Diffusion` takes. It learns the chunks of
demonstrations by the generator's loss; which of its weights learn (all, the action expert, LoRA) is the component's own
business. A chunk is drawn out of noise, its first part is done, and the next one is drawn.
"""

from __future__ import annotations

from torch import Tensor

from rl_lab.components.action_chunks import RecedingHorizon, read_chunks
from rl_lab.components.chunk_agent import AgentWorkflow, ChunkAgent
from rl_lab.components.learner import Learner
from rl_lab.core import (
    Actions,
    Batch,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    WorkflowContext,
    hook,
)
from rl_lab.core.ranges import Count, Natural, Positive, UnitInterval
from rl_lab.ops.schedules import warm_cosine


class SFT(AgentWorkflow):
    """Fine-tuning on demonstrations; components: generator (FlowMatching or Diffusion), encoder? (ResNet).

    Args:
        observation_horizon: Observations that a chunk of actions depends on; a VLA reads 1. The buffer's `history`.
        prediction_horizon: Actions of a chunk, from the newest observation on; the buffer's `chunk_length`.
        action_horizon: Actions of a chunk that are done before the next one is drawn.
        average_power: How fast the average of the weights, which acts, slows down; null: no average.
        average_most: Largest share of itself that the average keeps.
        warmup_updates: Updates until the learning rate is reached.
        final_rate: Share of the learning rate that is left at the end of the phase; half a cosine leads to it.
        mask_padding: Learn nothing from steps after the end of an episode; false: its last action is repeated there.
        accumulation: Parts of a batch whose gradients are added up one after another, which takes less memory.
        max_grad_norm: Longest gradient; null leaves it free.
        shard_weights: With several processes, each holds a part of weights, gradients and optimiser (FSDP).
    """

    imitates = reduces_over_ranks = True

    def __init__(
        self,
        *,
        observation_horizon: Count = 1,
        prediction_horizon: Count = 50,
        action_horizon: Count = 25,
        average_power: UnitInterval | None = None,
        average_most: UnitInterval = 0.9999,
        warmup_updates: Natural = 1000,
        final_rate: UnitInterval = 0.1,
        mask_padding: bool = True,
        accumulation: Count = 1,
        max_grad_norm: Positive | None = 1.0,
        shard_weights: bool = False,
    ) -> None:
        super().__init__()
        if action_horizon > prediction_horizon:
            raise ConfigError(
                f"algorithm.action_horizon: {action_horizon} actions are more than prediction_horizon="
                f"{prediction_horizon}, the length of a chunk"
            )
        self.observation_horizon, self.prediction_horizon = observation_horizon, prediction_horizon
        self.action_horizon, self.mask_padding, self.max_grad_norm = action_horizon, mask_padding, max_grad_norm
        if shard_weights and average_power is not None:
            raise ConfigError(
                "algorithm.average_power: sharded weights have no average (set null, or shard_weights=false)"
            )
        self.average_power, self.average_most, self.shard_weights = average_power, average_most, shard_weights
        self.warmup_updates, self.final_rate, self.accumulation = warmup_updates, final_rate, accumulation

    def initialize(self, context: WorkflowContext) -> None:
        """Bind the policy to the task and build the optimiser `policy` of what learns."""
        self._spec, self._sources = context.spec, context.buffers
        self.agent = ChunkAgent(
            context,
            observation_horizon=self.observation_horizon,
            prediction_horizon=self.prediction_horizon,
            average_power=self.average_power,
            average_most=self.average_most,
            shard_weights=self.shard_weights,
        )
        trained, shards, norm = self.agent.trained(), self.agent.shards, self.max_grad_norm
        self.learner = Learner(context, "policy", trained, lr=2.5e-5, max_grad_norm=norm, shards=shards)
        self._bind_update(context, self._learn)
        self._horizon = RecedingHorizon(
            self.agent.plan, history=self.observation_horizon, num_actions=self.action_horizon, context=context
        )

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the next action of the running chunk; where it is done or an episode begins, draw the next chunk."""
        actions, carry = self._horizon(obs, carry, is_first)
        return actions, {}, carry

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the loss of one batch of chunks; the first one measures in what limits the demonstrations lie."""
        horizons = {"history": self.observation_horizon, "chunk_length": self.prediction_horizon}
        chunks = read_chunks(batch, self._spec, **horizons)
        self._fit(self._sources[phase.buffer or ""])
        rate = self._set_rate(phase)
        return {**self._updated(chunks), "learning_rate": rate}

    def _set_rate(self, phase: Phase) -> float:
        """Set and return the learning rate: up in a line, down to its last share as half a cosine."""
        peak, warm = self.learner.initial_rate, (self.num_updates + 1) / max(1, self.warmup_updates)
        last = self.final_rate * peak
        rate = warm_cosine(peak - last, phase.progress, warm) + last * min(1.0, warm)
        self.learner.set_rate(rate)
        return rate

    def _learn(self, chunks: Batch) -> dict[str, Tensor]:
        weights = (~chunks["is_pad"]).float() if self.mask_padding else None
        loss, norm = self.agent.descend(self.learner, chunks, weights, self.accumulation)
        return {"loss": loss, "grad_norm": norm}
