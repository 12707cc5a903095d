"""Soft actor-critic (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905), continuous and discrete.

One update: critics towards `r + gamma (min Q' - alpha log pi)`, the policy up `Q - alpha log pi`, the temperature
towards its target entropy, the target networks a little towards the critics. Variants are switches: REDQ (many critics,
random subsets), DroQ (dropout and layer norm in the critics), distributional critics (FastSAC), pixels with random
shifts (DrQ), memory (sequences). Time limits bootstrap, terminations do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_lab.components.accumulation import Accumulating, PartedUpdate
from rl_lab.components.action_values import ActionValues, ValueRange, random_members
from rl_lab.components.continuous_actions import ActionScale
from rl_lab.components.critic_updates import CriticUpdate, Judged, update_critics
from rl_lab.components.exploration import reject_long_warm_up
from rl_lab.components.learner import Learner, frozen_copy, polyak, set_rates, trained
from rl_lab.components.perception import CARRY, Perception, Transitions, reject_widths, weighted_mean
from rl_lab.components.policies import CategoricalPolicy, Mask, Policy, SquashedPolicy
from rl_lab.components.squashed_heads import PolicyKind, squashed_head
from rl_lab.core import (
    Actions,
    Batch,
    BatchKind,
    Carry,
    ConfigError,
    Discrete,
    EnvSpec,
    Extras,
    Metrics,
    Observation,
    Phase,
    Update,
    WorkflowContext,
    flat_dim,
    hook,
)
from rl_lab.core.ranges import Count, Natural, Positive, UnitInterval
from rl_lab.core.ranks import Ranks
from rl_lab.ops.distributions import Distribution

DISCRETE_ENTROPY_SHARE = 0.98  # of the largest entropy there is; Christodoulou, 2019
MIN_WEIGHT = 1e-8  # of all rows together: where none counts the entropy is 0


class SAC(Accumulating):
    """SAC for continuous and discrete actions; components: actor, critic (EnsembleMLP), encoder?, memory?.

    Args:
        gamma: Discount per env step; replay buffers take it over.
        tau: How far target networks move towards the critics per update.
        policy: gaussian, mixture or flow (continuous actions), all squashed by tanh.
        num_components: Gaussians of a mixture.
        num_flow_layers: Coupling layers of a flow.
        target_entropy: What the temperature is steered to, in nats; auto: minus the number of action dimensions, or
            0.98 of the largest for discrete actions; null: the temperature stays.
        initial_alpha: First temperature.
        reward_scale: What rewards are multiplied with.
        actor_reduction: Which value of the critics the policy climbs: min or mean.
        subset_size: Critics, drawn at random, whose smallest value is the target (REDQ: 2 of 10); null: all.
        policy_delay: Updates of the critics per update of policy and temperature.
        random_steps: Env steps with uniformly random actions at the start.
        value_range: Makes the critics distributional, over these atoms; null: plain values.
        normalize_observations: Normalise vectors by running statistics of the batches.
        image_shift: Pixels by which images are moved at random (DrQ: 4); 0: none.
        max_grad_norm: Longest gradient of each network; null leaves it free.
        learning_rate_schedule: constant or linear (to 0 at the end of the phase), of all optimisers.
        accumulation: Parts of a batch whose gradients, of the critics and encoders, are added up for less memory.
    """

    reduces_over_ranks = True

    def __init__(
        self,
        *,
        gamma: UnitInterval = 0.99,
        tau: UnitInterval = 0.005,
        policy: PolicyKind = "gaussian",
        num_components: Count = 4,
        num_flow_layers: Count = 4,
        target_entropy: float | Literal["auto"] | None = "auto",
        initial_alpha: Positive = 1.0,
        reward_scale: Positive = 1.0,
        actor_reduction: Literal["min", "mean"] = "min",
        subset_size: Count | None = None,
        policy_delay: Count = 1,
        random_steps: Natural = 0,
        value_range: ValueRange | None = None,
        normalize_observations: bool = False,
        image_shift: Natural = 0,
        max_grad_norm: Positive | None = None,
        learning_rate_schedule: Literal["constant", "linear"] = "constant",
        accumulation: Count = 1,
    ) -> None:
        super().__init__()
        self.gamma, self.tau, self.reward_scale = gamma, tau, reward_scale
        self.policy_kind, self.num_components, self.num_flow_layers = policy, num_components, num_flow_layers
        self.target_entropy, self.initial_alpha = target_entropy, initial_alpha
        self.actor_reduction, self.subset_size = actor_reduction, subset_size
        self.policy_delay, self.random_steps = policy_delay, random_steps
        self.value_range, self.max_grad_norm = value_range, max_grad_norm
        self.normalize_observations, self.image_shift = normalize_observations, image_shift
        self.learning_rate_schedule, self.accumulation = learning_rate_schedule, accumulation

    def initialize(self, context: WorkflowContext) -> None:
        """Put heads on the components, copy the targets and build the optimisers `critic`, `actor` and `alpha`."""
        spec, device = context.spec, context.device
        reject_long_warm_up(context, self.random_steps)
        self.policy = self._make_policy(spec, context.components["actor"]).to(device)
        self.perception = Perception(
            spec,
            context.components,
            normalize_observations=self.normalize_observations,
            shift_pad=self.image_shift,
            ranks=context.ranks,
        ).to(device)
        self.critic = ActionValues(context.components["critic"], spec.action, self.value_range).to(device)
        trunks = {"actor": self.policy.trunk, "critic": self.critic.trunk}
        reject_widths(self.perception, spec.action, has_kinds=True, **trunks)
        if self.subset_size is not None and self.subset_size > self.critic.trunk.num_members:
            raise ConfigError(f"algorithm.subset_size: {self.subset_size} of {self.critic.trunk.num_members} critics")
        self.target_perception, self.target_critic = frozen_copy(self.perception), frozen_copy(self.critic)
        self.log_alpha = nn.Parameter(torch.full((), math.log(self.initial_alpha), device=device))
        self.entropy_goal = self._entropy_goal(spec)
        norm = self.max_grad_norm
        self.critics = Learner(context, "critic", trained(self.perception, self.critic), max_grad_norm=norm)
        self.actors = Learner(context, "actor", trained(self.policy), max_grad_norm=norm)
        self.alphas = None if self.entropy_goal is None else Learner(context, "alpha", [self.log_alpha])
        self.num_updates = 0
        self._update = PartedUpdate(context, self._learn_all)
        self._update_critic = PartedUpdate(context, self._learn_critic) if self.policy_delay > 1 else self._update

    def _make_policy(self, spec: EnvSpec, trunk: nn.Module) -> Policy:
        if isinstance(spec.action, Discrete):
            if self.policy_kind != "gaussian" or self.value_range is not None:
                raise ConfigError("algorithm: policy and value_range of SAC are for continuous actions")
            return CategoricalPolicy(trunk, spec)
        scale = ActionScale(spec, type(self).__name__)
        head = squashed_head(
            self.policy_kind,
            int(trunk.output_dim),  # type: ignore[arg-type]
            scale.dim,
            num_components=self.num_components,
            num_layers=self.num_flow_layers,
        )
        return SquashedPolicy(trunk, head, scale)

    def _entropy_goal(self, spec: EnvSpec) -> float | None:
        count, goal = flat_dim(spec.action), self.target_entropy
        is_discrete = isinstance(spec.action, Discrete)
        largest = math.log(count) if is_discrete else count * math.log(2.0)  # uniform, over [-1, 1] each
        if goal == "auto":
            return DISCRETE_ENTROPY_SHARE * largest if is_discrete else -float(count)
        if goal is not None and (goal > largest or (is_discrete and goal < 0.0)):
            least = "between 0 and" if is_discrete else "at most"
            raise ConfigError(
                f"algorithm.target_entropy: {goal} nats are out of reach, policies here have {least} {largest:.2f} "
                "(choices: auto, null, a number)"
            )
        return goal

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
        """Sample, or take the mode; during the first `random_steps` draw uniformly."""
        features, mask, next_carry = self.perception.step(obs, carry, is_first)
        at_random = explore and step < self.random_steps
        actions = self._choose(features, mask, explore=explore, at_random=at_random)
        return actions, {} if carry is None else {CARRY: carry}, next_carry

    def _choose(self, features: Tensor, mask: Mask, *, explore: bool, at_random: bool) -> Tensor:
        return self.policy.random(features, mask) if at_random else self.policy.behave(features, mask, explore=explore)

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics | Update:
        """Descend the losses of critics, policy and temperature on one batch, and move the targets."""
        self.num_updates += 1
        update = self._update if self.num_updates % self.policy_delay == 0 else self._update_critic
        rate = set_rates((self.critics, self.actors, self.alphas), self.learning_rate_schedule, phase.progress)
        learnt, errors = update({key: batch[key] for key in self.perception.reads if key in batch})
        metrics: Metrics = {**learnt, **rate}
        return Update(metrics, {"priorities": errors}) if "weights" in batch else metrics

    def _learn_all(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        rows, metrics, errors = self._descend_critic(batch)
        metrics |= self._descend_actor(rows.features, rows)
        self._move_targets()
        return metrics, errors

    def _learn_critic(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        _, metrics, errors = self._descend_critic(batch)
        self._move_targets()
        return metrics, errors

    def _parted_updates(self) -> tuple[PartedUpdate[Any], ...]:
        return self._update, self._update_critic

    def _descend_critic(self, batch: Batch) -> CriticUpdate:
        """Move the critics, and the encoder, towards their targets."""
        return update_critics(self.critic, self.critics, self.perception, self._judged, batch, self.accumulation)

    def _judged(self, batch: Batch) -> Judged:
        rows = self.perception(batch, self.target_perception, self.gamma)
        targets = self._targets(rows)
        return Judged(rows, self.critic(rows.features, self._valued(rows.actions)), targets)

    def _valued(self, actions: Tensor) -> Tensor:
        """Return what critics read of the actions that were taken."""
        return self.policy.recorded(actions)

    @torch.no_grad()
    def _targets(self, rows: Transitions) -> Tensor:
        """Return `scale r + discount (min Q'(s', a') - alpha log pi(a'|s'))`, or its distribution."""
        pi = self.policy(rows.next_features, rows.next_mask)
        alpha, rewards = self.log_alpha.exp(), self.reward_scale * rows.rewards
        if not self.critic.is_distributional:
            log_prob, value = self._soft_terms(pi, self.target_critic, rows.next_target_features, self._lowest)
            return rewards + rows.discounts * (value - alpha * log_prob)
        latents, log_prob = pi.draw()
        outputs = self.target_critic(rows.next_target_features, self.policy.for_critic(latents))
        return self.critic.targets(self._lowest(outputs), rewards, rows.discounts, -alpha * log_prob)

    def _descend_actor(self, features: Tensor, rows: Transitions) -> dict[str, Tensor]:
        """Move the policy up `Q - alpha log pi`, and the temperature to where the entropy is the goal."""
        pi = self.policy(features, rows.mask)
        log_prob, value = self._soft_terms(pi, self.critic, features, self._climbed)
        alpha = self.log_alpha.exp()
        loss = weighted_mean(alpha.detach() * log_prob - value, rows.weights, self.actors.ranks)
        norm = self.actors.descend(loss)
        entropy = -_average(log_prob.detach(), rows.weights, self.actors.ranks)
        if self.alphas is not None and self.entropy_goal is not None:
            self.alphas.descend(alpha * (entropy - self.entropy_goal))
        return {"actor_loss": loss.detach(), "actor_grad_norm": norm, "entropy": entropy, "alpha": alpha.detach()}

    def _soft_terms(
        self, pi: Distribution, critic: ActionValues, features: Tensor, reduce: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the means [R] of log-probability and value over actions of `pi`."""

        def terms(latents: Tensor | None, log_prob: Tensor) -> tuple[Tensor, ...]:
            draws = 1 if latents is None else len(latents) // len(features)  # of a mixture: one per component
            rows = features if draws == 1 else features.repeat_interleave(draws, 0)
            return log_prob, reduce(critic(rows, self.policy.for_critic(latents)))

        return pi.expect(terms)

    def _lowest(self, outputs: Tensor) -> Tensor:
        """Return the lowest of all critics' outputs, or of a random few."""
        few = outputs if self.subset_size is None else random_members(outputs, self.subset_size)
        return self.critic.lowest(few)

    def _climbed(self, outputs: Tensor) -> Tensor:
        values = self.critic.values(outputs)
        return values.amin(0) if self.actor_reduction == "min" else values.mean(0)

    def _move_targets(self) -> None:
        polyak(self.target_critic, self.critic, self.tau)
        polyak(self.target_perception, self.perception, self.tau)

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the policy's delay counts."""
        return {"num_updates": self.num_updates, **super().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        super().set_state(state)
        self.num_updates = state["num_updates"]


def _average(values: Tensor, weights: Tensor | None, ranks: Ranks) -> Tensor:
    """Return the mean of `values` [R] by weights that need not be 1 on average: importance weights are less."""
    if weights is None:
        return values.mean()
    total = weights.sum()
    total = total if ranks.size == 1 else ranks.mean_(total)
    return (values * weights).sum() / total.clamp_min(MIN_WEIGHT)
