"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477).

One update: critics towards `r + gamma min Q'(s', pi'(s') + clipped noise)`; every second one also moves the policy up
the first critic, and the target networks a little towards theirs. DDPG (Lillicrap et al., 2016) is one critic, no delay
and no smoothing. FastTD3 (Seo et al., 2025, https://arxiv.org/abs/2505.22642) is distributional critics, large batches
and, for each of many environments, noise of its own size. Time limits bootstrap, terminations do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_lab.components.accumulation import Accumulating, PartedUpdate
from rl_lab.components.action_values import ActionValues, ValueRange
from rl_lab.components.array_mlp import fast_forward
from rl_lab.components.continuous_actions import ActionScale
from rl_lab.components.critic_updates import CriticUpdate, Judged, update_critics
from rl_lab.components.exploration import ActionNoise, NoiseKind, reject_long_warm_up
from rl_lab.components.learner import Learner, frozen_copy, polyak, set_rates, trained
from rl_lab.components.mlp import orthogonal_linear
from rl_lab.components.perception import CARRY, Perception, Transitions, reject_widths, weighted_mean
from rl_lab.components.precision import in_float32
from rl_lab.components.squashed_heads import HEAD_GAIN
from rl_lab.core import (
    Actions,
    Batch,
    BatchKind,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    Update,
    WorkflowContext,
    hook,
)
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval


class DeterministicPolicy(nn.Module):
    """One action in [-1, 1] for every feature vector.

    Args:
        trunk: `components.actor`.
        action_dim: Numbers per action.
    """

    def __init__(self, trunk: nn.Module, action_dim: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = orthogonal_linear(int(trunk.output_dim), action_dim, HEAD_GAIN)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        """Return the actions."""
        return torch.tanh(in_float32(self.head, self.trunk(features)))


class SpreadNoise:
    """Gaussian noise whose size each environment draws anew when an episode begins; the sizes are its carry.

    Args:
        low: Smallest standard deviation.
        high: Largest standard deviation.
    """

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def initial_carry(self, num_envs: int, device: torch.device) -> Carry:
        """Return what the first step of an episode replaces."""
        return torch.zeros(num_envs, 1, device=device)

    def __call__(self, actions: Tensor, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Return noisy actions within [-1, 1] and the next carry."""
        drawn = torch.empty_like(carry).uniform_(self._low, self._high)
        carry = torch.where(is_first.unsqueeze(-1), drawn, carry)
        return (actions + carry * torch.randn_like(actions)).clamp(-1.0, 1.0), carry


class TD3(Accumulating):
    """TD3 for continuous actions; components: actor, critic (EnsembleMLP), encoder?, memory?.

    Args:
        gamma: Discount per env step; replay buffers take it over.
        tau: How far target networks move each time they do.
        policy_delay: Updates of the critics per update of the policy (DDPG: 1).
        delay_targets: Let target networks wait for the policy's updates; false: they move at each one (FastTD3).
        use_target_actor: Take the next action from a target network; false: from the policy itself (FastTD3).
        target_noise: Standard deviation of the noise on the next action, in [-1, 1] (DDPG: 0).
        target_noise_clip: Longest such noise.
        target_reduction: min: the target of all critics is the lowest of theirs; own: each follows its own.
        actor_reduction: Which value of the critics the policy climbs: first, min (FastTD3) or mean.
        noise: Exploration: gaussian, or ou (correlated in time).
        noise_std: Standard deviation of each step's draw, actions being in [-1, 1].
        noise_std_max: Each environment draws its own between `noise_std` and this when an episode begins; null: no.
        reward_scale: What rewards are multiplied with.
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
        policy_delay: Count = 2,
        delay_targets: bool = True,
        use_target_actor: bool = True,
        target_noise: NonNegative = 0.2,
        target_noise_clip: NonNegative = 0.5,
        target_reduction: Literal["min", "own"] = "min",
        actor_reduction: Literal["first", "min", "mean"] = "first",
        noise: NoiseKind = "gaussian",
        noise_std: NonNegative = 0.1,
        noise_std_max: NonNegative | None = None,
        reward_scale: Positive = 1.0,
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
        self.policy_delay, self.delay_targets, self.use_target_actor = policy_delay, delay_targets, use_target_actor
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip
        self.target_reduction, self.actor_reduction = target_reduction, actor_reduction
        self.noise_kind, self.noise_std, self.noise_std_max = noise, noise_std, noise_std_max
        self.random_steps, self.value_range, self.max_grad_norm = random_steps, value_range, max_grad_norm
        self.normalize_observations, self.image_shift = normalize_observations, image_shift
        self.learning_rate_schedule, self.accumulation = learning_rate_schedule, accumulation

    def initialize(self, context: WorkflowContext) -> None:
        """Put heads on the components, copy the targets and build the optimisers `critic` and `actor`."""
        spec, self._device = context.spec, context.device
        reject_long_warm_up(context, self.random_steps)
        self.scale = ActionScale(spec, "TD3")
        self.noise = self._make_noise()
        self.policy = DeterministicPolicy(context.components["actor"], self.scale.dim).to(self._device)
        self.perception = Perception(
            spec,
            context.components,
            normalize_observations=self.normalize_observations,
            shift_pad=self.image_shift,
            ranks=context.ranks,
        ).to(self._device)
        self.critic = ActionValues(context.components["critic"], spec.action, self.value_range).to(self._device)
        reject_widths(self.perception, spec.action, actor=self.policy.trunk, critic=self.critic.trunk)
        self.target_perception, self.target_critic = frozen_copy(self.perception), frozen_copy(self.critic)
        self.target_policy = frozen_copy(self.policy) if self.use_target_actor else None
        self._output = fast_forward(self.policy.trunk, self.policy.head)
        clip, learnt = self.max_grad_norm, trained(self.perception, self.critic)
        self.critics = Learner(context, "critic", learnt, max_grad_norm=clip)
        self.actors = Learner(context, "actor", trained(self.policy), max_grad_norm=clip)
        self.num_updates = 0
        self._update = PartedUpdate(context, self._learn_all)
        self._update_critic = PartedUpdate(context, self._learn_critic) if self.policy_delay > 1 else self._update

    def _make_noise(self) -> ActionNoise | SpreadNoise:
        if self.noise_std_max is None:
            return ActionNoise(self.noise_kind, self.noise_std, self.scale.dim)
        if self.noise_kind != "gaussian":
            raise ConfigError(f"algorithm.noise_std_max: needs noise gaussian, not {self.noise_kind!r}")
        if self.noise_std_max < self.noise_std:
            raise ConfigError(f"algorithm.noise_std_max: {self.noise_std_max} is less than noise_std={self.noise_std}")
        return SpreadNoise(self.noise_std, self.noise_std_max)

    @property
    def batch_kinds(self) -> tuple[BatchKind, ...]:
        """Return that a memory learns from sequences, and others from transitions."""
        return self.perception.batch_kinds

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the memory's state and that of the exploration noise at an episode's start."""
        memory = self.perception.initial_carry(num_envs)
        return {"memory": memory, "noise": self.noise.initial_carry(num_envs, self._device)}

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the policy's actions, with noise where it explores; during the first `random_steps` draw uniformly."""
        features, _, memory = self.perception.step(obs, carry["memory"], is_first)
        actions, noise = torch.tanh(self._output(features)), carry["noise"]
        if explore:
            actions, noise = self.noise(actions, noise, is_first)  # goes on beneath random actions
            if step < self.random_steps:
                actions = self.scale.uniform(len(features), features.device)
        extras = {} if carry["memory"] is None else {CARRY: carry["memory"]}
        return self.scale.to_environment(actions), extras, {"memory": memory, "noise": noise}

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics | Update:
        """Descend the critics' loss on one batch; when their turn has come, move policy and targets too."""
        self.num_updates += 1
        update = self._update if self.num_updates % self.policy_delay == 0 else self._update_critic
        rate = set_rates((self.critics, self.actors), self.learning_rate_schedule, phase.progress)
        learnt, errors = update({key: batch[key] for key in self.perception.reads if key in batch})
        metrics: Metrics = {**learnt, **rate}
        return Update(metrics, {"priorities": errors}) if "weights" in batch else metrics

    def _learn_all(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        rows, metrics, errors = self._descend_critic(batch)
        metrics |= self._descend_actor(rows.features, rows.weights)
        self._move_targets()
        return metrics, errors

    def _learn_critic(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        _, metrics, errors = self._descend_critic(batch)
        if not self.delay_targets:
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
        return Judged(rows, self.critic(rows.features, self.scale.to_unit(rows.actions)), targets)

    @torch.no_grad()
    def _targets(self, rows: Transitions) -> Tensor:
        """Return `scale r + discount min Q'(s', a')` or its distribution; one for each critic where they keep apart."""
        outputs = self.target_critic(rows.next_target_features, self._next_actions(rows))
        if self.target_reduction == "min":
            outputs = self.critic.lowest(outputs)
        rewards = self.reward_scale * rows.rewards
        return self.critic.targets(outputs, rewards, rows.discounts, torch.zeros_like(rewards))

    def _next_actions(self, rows: Transitions) -> Tensor:
        """Return what the target policy does next, smoothed by clipped noise."""
        if self.target_policy is None:
            actions: Tensor = self.policy(rows.next_features)
        else:
            actions = self.target_policy(rows.next_target_features)
        if self.target_noise == 0:
            return actions
        noise = (self.target_noise * torch.randn_like(actions)).clamp(-self.target_noise_clip, self.target_noise_clip)
        return (actions + noise).clamp(-1.0, 1.0)

    def _descend_actor(self, features: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Move the policy up the critics' value."""
        values = self.critic.values(self.critic(features, self.policy(features)))
        loss = -weighted_mean(self._climbed(values), weights, self.actors.ranks)
        norm = self.actors.descend(loss)
        return {"actor_loss": loss.detach(), "actor_grad_norm": norm}

    def _climbed(self, values: Tensor) -> Tensor:
        if self.actor_reduction == "first":
            return values[0]
        return values.amin(0) if self.actor_reduction == "min" else values.mean(0)

    def _move_targets(self) -> None:
        polyak(self.target_critic, self.critic, self.tau)
        polyak(self.target_perception, self.perception, self.tau)
        if self.target_policy is not None:
            polyak(self.target_policy, self.policy, self.tau)

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the policy's delay counts."""
        return {"num_updates": self.num_updates, **super().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        super().set_state(state)
        self.num_updates = state["num_updates"]
