"""Deep Q-learning (Mnih et al., 2015, https://doi.org/10.1038/nature14236), with the parts of Rainbow as switches.

One update: the value of what was done towards `r + gamma max Q'`, and every so often the target network towards the
critic. Switches: double (van Hasselt et al., 2016), dueling (Wang et al., 2016), noisy (Fortunato et al., 2018),
distribution (C51, Bellemare et al., 2017; QR-DQN, Dabney et al., 2018), munchausen (Vieillard et al., 2020). Steps per
transition and priorities are those of the buffer; together they are Rainbow (Hessel et al., 2018). Time limits
bootstrap, terminations do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rl_lab.components.accumulation import Accumulating, PartedUpdate, joined, parts_of
from rl_lab.components.action_values import ValueRange
from rl_lab.components.continuous_actions import reject_actions
from rl_lab.components.discrete_values import DiscreteValues, Distribution, Loss, allowed, chosen, make_returns
from rl_lab.components.exploration import reject_long_warm_up
from rl_lab.components.learner import Learner, frozen_copy, polyak, trained
from rl_lab.components.perception import (
    CARRY,
    Perception,
    Transitions,
    reject_ensemble,
    reject_widths,
    weighted_mean,
)
from rl_lab.core import (
    Actions,
    Batch,
    BatchKind,
    Carry,
    ConfigError,
    Discrete,
    Extras,
    Metrics,
    Observation,
    Phase,
    Update,
    WorkflowContext,
    hook,
)
from rl_lab.core.ranges import Count, Natural, NonPositive, Positive, UnitInterval
from rl_lab.ops.distributions import masked_logits
from rl_lab.ops.schedules import linear_decay


class DQN(Accumulating):
    """DQN and Rainbow for discrete actions; components: critic, value? (of dueling), encoder?, memory?.

    Args:
        gamma: Discount per env step; replay buffers take it over.
        double: Choose the next action by the critic and value it by the target network.
        dueling: Put out a value and advantages; with `components.value` the value has a stream of its own.
        noisy: Explore by learnt noise in the critic's linear layers, without epsilon.
        distribution: none, categorical (C51) or quantile (QR-DQN).
        value_range: Atoms of the categorical distribution.
        num_quantiles: Quantiles of the quantile distribution.
        munchausen: Reward likely actions, and learn the soft value of the next ones.
        munchausen_alpha: Weight of the log-probability in the reward.
        munchausen_tau: Temperature of the policy that is likely or not.
        munchausen_clip: Lowest log-probability, times the temperature, that counts.
        loss: huber or mse, of plain values.
        tau: How far target networks move towards the critic when they do; 1: all the way.
        target_update_every: Updates between two moves of the target networks.
        epsilon_start: Share of random actions at the start.
        epsilon_end: And at the end.
        epsilon_steps: Env steps from the one to the other, along a line.
        epsilon_eval: Share of random actions in evaluation.
        random_steps: Env steps with uniformly random actions at the start.
        normalize_observations: Normalise vectors by running statistics of the batches.
        image_shift: Pixels by which images are moved at random (DrQ: 4); 0: none.
        max_grad_norm: Longest gradient; null leaves it free.
        learning_rate_schedule: constant or linear (to 0 at the end of the phase).
        accumulation: Parts of a batch whose gradients are added up one after another, which takes less memory.
    """

    reduces_over_ranks = True

    def __init__(
        self,
        *,
        gamma: UnitInterval = 0.99,
        double: bool = False,
        dueling: bool = False,
        noisy: bool = False,
        distribution: Distribution = "none",
        value_range: ValueRange | None = None,
        num_quantiles: Count = 200,
        munchausen: bool = False,
        munchausen_alpha: UnitInterval = 0.9,
        munchausen_tau: Positive = 0.03,
        munchausen_clip: NonPositive = -1.0,
        loss: Loss = "huber",
        tau: UnitInterval = 1.0,
        target_update_every: Count = 1_000,
        epsilon_start: UnitInterval = 1.0,
        epsilon_end: UnitInterval = 0.05,
        epsilon_steps: Count = 10_000,
        epsilon_eval: UnitInterval = 0.0,
        random_steps: Natural = 0,
        normalize_observations: bool = False,
        image_shift: Natural = 0,
        max_grad_norm: Positive | None = None,
        learning_rate_schedule: Literal["constant", "linear"] = "constant",
        accumulation: Count = 1,
    ) -> None:
        super().__init__()
        if munchausen and double:
            raise ConfigError("algorithm.double: munchausen takes no largest value; set one of them to false")
        self.gamma, self.tau, self.target_update_every = gamma, tau, target_update_every
        self.use_double, self.use_dueling, self.use_noise = double, dueling, noisy
        self.distribution, self.value_range, self.num_quantiles, self.loss = (
            distribution,
            value_range,
            num_quantiles,
            loss,
        )
        self.munchausen, self.munchausen_alpha = munchausen, munchausen_alpha
        self.munchausen_tau, self.munchausen_clip = munchausen_tau, munchausen_clip
        self.epsilon_start, self.epsilon_end, self.epsilon_steps = epsilon_start, epsilon_end, epsilon_steps
        self.epsilon_eval, self.random_steps = epsilon_eval, random_steps
        self.normalize_observations, self.image_shift = normalize_observations, image_shift
        self.max_grad_norm, self.learning_rate_schedule = max_grad_norm, learning_rate_schedule
        self.accumulation = accumulation

    def initialize(self, context: WorkflowContext) -> None:
        """Put a head on the component, copy the target and build the optimiser `critic`."""
        spec, device = context.spec, context.device
        if not isinstance(spec.action, Discrete):
            reject_actions(spec, "DQN")
        reject_long_warm_up(context, self.random_steps)
        self.perception = Perception(
            spec,
            context.components,
            normalize_observations=self.normalize_observations,
            shift_pad=self.image_shift,
            ranks=context.ranks,
        ).to(device)
        critic, value = context.components["critic"], context.components.get("value")
        reject_ensemble("critic", critic)
        self.critic = DiscreteValues(
            critic,
            spec.action.n,
            make_returns(self.distribution, self.value_range, self.num_quantiles, self.loss),
            is_dueling=self.use_dueling,
            value_trunk=value,
            is_noisy=self.use_noise,
        ).to(device)
        streams = {} if value is None else {"value": value}
        reject_widths(self.perception, spec.action, critic=critic, **streams)
        self.target_perception, self.target_critic = frozen_copy(self.perception), frozen_copy(self.critic)
        parameters = trained(self.perception, self.critic)
        self.critics = Learner(context, "critic", parameters, max_grad_norm=self.max_grad_norm)
        self.counters = context.counters
        self.num_updates = 0
        self._update = PartedUpdate(context, self._learn)

    @property
    def batch_kinds(self) -> tuple[BatchKind, ...]:
        """Return that a memory learns from sequences, and others from transitions."""
        return self.perception.batch_kinds

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the memory's state at an episode's start."""
        return self.perception.initial_carry(num_envs)

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the best actions, and random ones as often as epsilon says."""
        features, mask, next_carry = self.perception.step(obs, carry, is_first)
        epsilon = self.epsilon(step) if explore else self.epsilon_eval
        actions = self.critic.behave(features, mask, epsilon, explore=explore)
        return actions, {} if carry is None else {CARRY: carry}, next_carry

    def epsilon(self, step: int) -> float:
        """Return the share of random actions after `step` env steps of training."""
        if step < self.random_steps:
            return 1.0
        if self.use_noise:
            return 0.0
        return self.epsilon_start + min(1.0, step / self.epsilon_steps) * (self.epsilon_end - self.epsilon_start)

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics | Update:
        """Descend the critic's loss on one batch, and move the target when its time has come."""
        self.num_updates += 1
        rate = self.critics.initial_rate
        if self.learning_rate_schedule == "linear":
            rate = linear_decay(rate, phase.progress)
            self.critics.set_rate(rate)
        learnt, errors = self._update({key: batch[key] for key in self.perception.reads if key in batch})
        if self.num_updates % self.target_update_every == 0 and self.target_update_every > 1:
            self._move_targets()
        metrics: Metrics = {**learnt, "epsilon": self.epsilon(self.counters.env_steps), "learning_rate": rate}
        return Update(metrics, {"priorities": errors}) if "weights" in batch else metrics

    def _learn(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Move the critic towards its targets; return metrics and the errors [R] that priorities are made of."""
        self.perception.follow(batch)
        count = None if self.accumulation == 1 else self.perception.count(batch, self.critics.ranks)
        values: list[Tensor] = []
        errors: list[Tensor] = []

        def loss(part: Batch) -> Tensor:
            rows = self.perception(part, self.target_perception, self.gamma)
            targets = self._soft_targets(rows, part) if self.munchausen else self._targets(rows)
            outputs = chosen(self.critic(rows.features), rows.actions)
            losses = self.critic.returns.losses(outputs, targets)  # [R]
            values.append(self.critic.values(outputs.detach()))
            errors.append(losses.detach() if self.critic.returns.num_outputs else (values[-1] - targets).abs())
            return weighted_mean(losses, rows.weights, self.critics.ranks, count)

        total, norm = self.critics.descend_over(loss, parts_of(batch, self.accumulation))
        if self.target_update_every == 1:
            self._move_targets()
        return {"critic_loss": total, "critic_grad_norm": norm, "q": joined(values).mean()}, joined(errors)

    @torch.no_grad()
    def _targets(self, rows: Transitions) -> Tensor:
        """Return `r + discount Q'(s', a')` of the best `a'`, or its distribution."""
        outputs = self.target_critic(rows.next_target_features)
        judged = self.critic(rows.next_features) if self.use_double else outputs
        best = allowed(self.critic.values(judged), rows.next_mask).argmax(-1)
        beliefs = self.critic.returns.beliefs(chosen(outputs, best))
        return self.critic.returns.targets(beliefs, rows.rewards, rows.discounts)

    @torch.no_grad()
    def _soft_targets(self, rows: Transitions, batch: Batch) -> Tensor:
        """Return `r + alpha [tau log pi(a|s)] + discount sum pi' (Q' - tau log pi')`, `pi = softmax(Q' / tau)`."""
        outputs = self.target_critic(rows.next_target_features)
        beliefs, log_pi = self.critic.returns.beliefs(outputs), self._log_policy(outputs, rows.next_mask)
        pi = log_pi.exp()
        entropy = -(pi * log_pi).sum(-1)
        weights = pi.unsqueeze(-1) if self.critic.returns.num_outputs else pi
        mixed = (weights * beliefs).sum(1)  # over actions
        now = self.target_critic(self.perception.seen_by(self.target_perception, batch))
        likely = self.munchausen_tau * chosen(self._log_policy(now, rows.mask), rows.actions)
        bonus = self.munchausen_alpha * likely.clamp(self.munchausen_clip, 0.0)
        rewards = rows.rewards + bonus + rows.discounts * self.munchausen_tau * entropy
        return self.critic.returns.targets(mixed, rewards, rows.discounts)

    def _log_policy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return masked_logits(self.critic.values(outputs) / self.munchausen_tau, mask).log_softmax(-1)

    def _move_targets(self) -> None:
        polyak(self.target_critic, self.critic, self.tau)
        polyak(self.target_perception, self.perception, self.tau)

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the target's moves count."""
        return {"num_updates": self.num_updates, **super().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        super().set_state(state)
        self.num_updates = state["num_updates"]
