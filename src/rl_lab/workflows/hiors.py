"""Hi-ORS: human-in-the-loop online rejection sampling (https://arxiv.org/abs/2510.26406).

A policy that draws chunks of actions practises beside a human who corrects it. Trajectories are accepted whole where
their score R reaches the threshold m_i of the round, corrections included, and the policy learns what was done in them
by flow matching. There is no value function: nothing has to be right about actions that nobody has tried.

Which trajectories are accepted, and which of their steps, is the buffer's part (`rl_lab.buffers.rejection`). Here are
the loss, weighted by the score, how chunks are executed, and the learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval
from rl_lab.ops.schedules import cosine_decay

SCORES = "scores"


class HiORS(AgentWorkflow):
    """Rejection sampling for continuous actions; components: generator (FlowMatching), encoder? (ResNet).

    Args:
        observation_horizon: Observations that a chunk of actions depends on; the buffer's `history`.
        prediction_horizon: Actions of a chunk, from the newest observation on; the buffer's `chunk_length`.
        action_horizon: Actions of a chunk that are done before the next one is drawn: a number, or the least and the
            most of a number that is drawn for each chunk. A correction ends a chunk.
        score_power: Chunks count by the score of their trajectory to this power; 0: all accepted ones alike.
        average_power: How fast the average of the weights, which acts, slows down: it keeps `1 - (1 + updates)^-power`
            of itself; null: no average.
        average_most: Largest share that it keeps.
        warmup_updates: Updates until the learning rate is reached.
        decay_updates: Updates of the whole run after which half a cosine has led to its last value; null: it stays.
        final_rate_share: That value, as a share of the learning rate.
        mask_padding: Learn nothing from steps after the end of an episode; false: its last action is repeated there.
        accumulation: Parts of a batch whose gradients are added up one after another, which takes less memory.
        max_grad_norm: Longest gradient; null leaves it free.
    """

    imitates = reduces_over_ranks = True

    def __init__(
        self,
        *,
        observation_horizon: Count = 1,
        prediction_horizon: Count = 50,
        action_horizon: Count | Sequence[Count] = (5, 25),
        score_power: NonNegative = 1.0,
        average_power: UnitInterval | None = 0.75,
        average_most: UnitInterval = 0.999,
        warmup_updates: Natural = 100,
        decay_updates: Count | None = None,
        final_rate_share: UnitInterval = 0.1,
        mask_padding: bool = True,
        accumulation: Count = 1,
        max_grad_norm: Positive | None = 1.0,
    ) -> None:
        super().__init__()
        self.action_bounds = _bounds(action_horizon, prediction_horizon)
        if decay_updates is not None and decay_updates <= warmup_updates:
            raise ConfigError(
                f"algorithm.decay_updates: {decay_updates} must be more than warmup_updates={warmup_updates}"
            )
        self.observation_horizon, self.prediction_horizon = observation_horizon, prediction_horizon
        self.average_power, self.average_most = average_power, average_most
        self.warmup_updates, self.decay_updates, self.final_rate_share = warmup_updates, decay_updates, final_rate_share
        self.score_power, self.mask_padding, self.max_grad_norm = score_power, mask_padding, max_grad_norm
        self.accumulation = accumulation

    def initialize(self, context: WorkflowContext) -> None:
        """Bind the policy to the task and build the optimiser `policy`."""
        self._spec, self._sources = context.spec, context.buffers
        self.agent = ChunkAgent(
            context,
            observation_horizon=self.observation_horizon,
            prediction_horizon=self.prediction_horizon,
            average_power=self.average_power,
            average_most=self.average_most,
        )
        self.learner = Learner(context, "policy", self.agent.trained(), lr=1e-4, max_grad_norm=self.max_grad_norm)
        self._bind_update(context, self._learn)
        least, most = self.action_bounds
        self._horizon = RecedingHorizon(
            self.agent.plan,
            history=self.observation_horizon,
            num_actions=most,
            least_actions=least,
            context=context,
        )

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the next action of the running chunk; where it is done or an episode begins, draw the next chunk."""
        actions, carry = self._horizon(obs, carry, is_first, varied=True)
        return actions, {}, carry

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the loss of one batch of accepted chunks; the first one measures in what limits the data lies."""
        chunks = self._read(batch)
        self._fit(self._sources[phase.buffer or ""])
        rate = self._set_rate()
        return {**self._updated(chunks), "learning_rate": rate}

    def _read(self, batch: Batch) -> Batch:
        """Return chunks, with the scores of their trajectories where these count."""
        horizons = {"history": self.observation_horizon, "chunk_length": self.prediction_horizon}
        chunks = read_chunks(batch, self._spec, **horizons)
        if not self.score_power:
            return chunks
        if SCORES not in batch:
            raise ConfigError(
                "algorithm.score_power: the buffer gives no scores, as a RejectionBuffer does (0: no need)"
            )
        return {**chunks, SCORES: batch[SCORES]}

    def _set_rate(self) -> float:
        """Set and return the learning rate, which follows the updates of all phases: no phase begins it anew."""
        rate, decay = self.learner.initial_rate, self.decay_updates
        final = rate if decay is None else self.final_rate_share * rate
        rate = cosine_decay(rate, final, self.num_updates, warmup=self.warmup_updates, decay=decay or 1)
        self.learner.set_rate(rate)
        return rate

    def _learn(self, chunks: Batch) -> dict[str, Tensor]:
        loss, norm = self.agent.descend(self.learner, chunks, self._weights(chunks), self.accumulation)
        return {"loss": loss, "grad_norm": norm}

    def _weights(self, chunks: Batch) -> Tensor | None:
        """Return how much each step of a chunk counts, [B, prediction_horizon]: R^power, its mean over all ranks 1."""
        is_step = (~chunks["is_pad"]).float() if self.mask_padding else None
        if not self.score_power:
            return is_step
        worth = chunks[SCORES].float().clamp(min=0.0) ** self.score_power
        average = self.learner.ranks.mean_(worth.mean()).clamp(min=1e-6)
        worth = (worth / average).unsqueeze(1).expand(chunks["is_pad"].shape)
        return worth if is_step is None else worth * is_step


def _bounds(horizon: int | Sequence[int], length: int) -> tuple[int, int]:
    """Return the least and the most actions of a chunk that are done."""
    given = [horizon, horizon] if isinstance(horizon, int) else list(horizon)
    if len(given) != 2 or not 1 <= given[0] <= given[1]:
        raise ConfigError(f"algorithm.action_horizon: needs a number, or the least and the most, not {given}")
    if given[1] > length:
        raise ConfigError(
            f"algorithm.action_horizon: {given[1]} actions are more than prediction_horizon={length}, the length of a "
            "chunk"
        )
    return given[0], given[1]
