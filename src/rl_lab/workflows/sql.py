"""Soft Q-learning (Haarnoja et al., 2017, https://arxiv.org/abs/1702.08165) for continuous actions.

One update: critics towards `r + gamma V`, where the soft value `V = log of the integral of exp Q` is estimated from
uniform actions; the policy, a network that turns noise into actions, along the Stein direction towards `exp Q`. The
temperature is 1: what rewards are multiplied with sets how greedy it is. Values of several tasks, each learned in its
own phase, can be added: the policy of their sum does what all of them want.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_lab.components.continuous_actions import ActionScale
from rl_lab.components.exploration import reject_long_warm_up
from rl_lab.components.implicit_policy import ParticlePolicyKind, particle_policy, reject_actor_input
from rl_lab.components.learner import Learner, frozen_copy, polyak, trained
from rl_lab.components.perception import CARRY, Perception, Transitions, reject_widths, weighted_mean
from rl_lab.components.task_values import TaskValues, reject_tasks
from rl_lab.core import (
    Actions,
    Batch,
    BatchKind,
    Box,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    Picture,
    Update,
    Workflow,
    WorkflowContext,
    hook,
    isolated_rng,
    unknown_name,
)
from rl_lab.core.ranges import Count, Natural, Positive, UnitInterval
from rl_lab.ops.raster import heat_map, side_by_side, unit_grid, with_dots
from rl_lab.ops.svgd import stein_direction

PLOT_DIM, PLOT_SIZE, PLOT_SAMPLES = 2, 160, 100  # of actions; pixels per side of a panel; actions of the policy
MIN_FIXED = 2  # particles; the kernel's width is a median over their logarithm
EDGE = 1e-6  # keeps the log-density of a squashed action finite at its bounds


class SQL(Workflow):
    """Soft Q-learning; components: actor (reads features and noise), critic (EnsembleMLP), encoder?, memory?.

    Args:
        gamma: Discount per env step; replay buffers take it over.
        policy: implicit (noise in, action out: any number of modes), or gaussian, mixture, flow, squashed by tanh.
        num_components: Gaussians of a mixture.
        num_flow_layers: Coupling layers of a flow.
        value_particles: Uniform actions that a soft value is estimated from.
        shared_particles: Draw them once for all states of a batch, not anew for each.
        kernel_particles: Actions of the policy per state, for the Stein direction.
        update_ratio: Share of these that are moved; the others show them the way.
        reward_scale: What rewards are multiplied with: the inverse temperature.
        reward_scale_end: Value that `reward_scale` has moved to, linearly, at the end of a phase; null: it stays.
        target_update_every: Updates between two moves of the target networks.
        tau: How far these move towards the critics: 1 copies them.
        tasks: Infos that are rewards of tasks, each with critics of its own: those of the phase's `task` learn and are
            wanted, or all where it names none. Empty: one set of critics, and a phase's `task` is the info that is its
            reward, instead of the environment's.
        random_steps: Env steps with uniformly random actions at the start.
        normalize_observations: Normalise vectors by running statistics of the batches.
        max_grad_norm: Longest gradient of each network; null leaves it free.
        plot_observations: Observations whose values over two-dimensional actions the hook `plot_values` draws.
    """

    task_weights: Tensor

    def __init__(
        self,
        *,
        gamma: UnitInterval = 0.99,
        policy: ParticlePolicyKind = "implicit",
        num_components: Count = 4,
        num_flow_layers: Count = 4,
        value_particles: Count = 16,
        shared_particles: bool = True,
        kernel_particles: Count = 16,
        update_ratio: UnitInterval = 0.5,
        reward_scale: Positive = 1.0,
        reward_scale_end: Positive | None = None,
        target_update_every: Count = 1_000,
        tau: UnitInterval = 1.0,
        tasks: Sequence[str] = (),
        random_steps: Natural = 0,
        normalize_observations: bool = False,
        max_grad_norm: Positive | None = None,
        plot_observations: Sequence[Sequence[float]] = (),
    ) -> None:
        super().__init__()
        self.gamma, self.tau, self.target_update_every = gamma, tau, target_update_every
        self.policy_kind, self.num_components, self.num_flow_layers = policy, num_components, num_flow_layers
        self.value_particles, self.shared_particles = value_particles, shared_particles
        self.num_moved = int(kernel_particles * update_ratio)
        self.num_fixed = kernel_particles - self.num_moved
        self.reward_scale, self.reward_scale_end = reward_scale, reward_scale_end
        self.tasks, self.num_tasks, self.random_steps = tuple(tasks), max(1, len(tasks)), random_steps
        self.normalize_observations, self.max_grad_norm = normalize_observations, max_grad_norm
        self.plot_observations = [list(obs) for obs in plot_observations]
        if self.num_moved < 1 or self.num_fixed < MIN_FIXED:
            raise ConfigError(
                f"algorithm.update_ratio: {update_ratio} of kernel_particles={kernel_particles} moves {self.num_moved} "
                f"(at least 1) and keeps {self.num_fixed} (at least {MIN_FIXED})"
            )

    def initialize(self, context: WorkflowContext) -> None:
        """Put heads on the components, copy the targets and build the optimisers `actor`, `critic` or one per task."""
        spec, device = context.spec, context.device
        reject_long_warm_up(context, self.random_steps)
        self.scale = ActionScale(spec, "SQL")
        normalize, trunk = self.normalize_observations, context.components["actor"]
        self.perception = Perception(spec, context.components, normalize_observations=normalize).to(device)
        reject_actor_input(self.policy_kind, trunk, self.perception, self.scale.dim)
        sizes = {"num_components": self.num_components, "num_layers": self.num_flow_layers}
        self.policy = particle_policy(self.policy_kind, trunk, self.scale.dim, **sizes).to(device)
        self.critic = TaskValues(context.components["critic"], spec.action, self.num_tasks).to(device)
        reject_widths(self.perception, spec.action, critic=context.components["critic"])
        reject_tasks(context, self.perception, self.tasks)
        self._reject_plots(context)
        self.target_perception, self.target_critic = frozen_copy(self.perception), frozen_copy(self.critic)
        self.register_buffer("task_weights", torch.ones(self.num_tasks, device=device))
        bound, names = self.max_grad_norm, [f"critic_{task}" for task in self.tasks] or ["critic"]
        self.critics = [
            Learner(context, name, trained(self.perception, critics), max_grad_norm=bound)
            for name, critics in zip(names, self.critic.tasks, strict=True)
        ]
        self.actors = Learner(context, "actor", trained(self.policy), max_grad_norm=bound)
        self.num_updates, self._plot_seed = 0, context.rng.seed("plot")
        self._current: tuple[int, ...] = ()  # the tasks that `task_weights` was last set to
        every = tuple(range(self.num_tasks))
        choices = {every, *((task,) for task in every)}
        self._update_both = {tasks: context.static(partial(self._learn_both, tasks)) for tasks in choices}
        self._update_policy = context.static(self._learn_policy)

    def _reject_plots(self, context: WorkflowContext) -> None:
        """Raise when a phase would draw an empty picture, or one of what is no observation."""
        phases, space = context.config.get("training", {}).get("phases", ()), context.spec.observation
        drawing = [phase for phase in phases if "plot_values" in str(phase.get("workflow_hooks", phase.get("hooks")))]
        if drawing and (not self.plot_observations or self.scale.dim != PLOT_DIM):
            raise ConfigError(
                f"hook plot_values of phase {drawing[0]['name']!r} needs algorithm.plot_observations (has "
                f"{len(self.plot_observations)}) and actions of 2 dimensions (has {self.scale.dim})"
            )
        if drawing and (not isinstance(space, Box) or {(len(obs),) for obs in self.plot_observations} != {space.shape}):
            raise ConfigError(f"algorithm.plot_observations: must be vectors as {context.spec.id!r} shows them")

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
        """Sample, or take the best of `value_particles` samples; during the first `random_steps` draw uniformly."""
        features, _, next_carry = self.perception.step(obs, carry, is_first)
        if explore and step < self.random_steps:
            actions = self.scale.uniform(len(features), features.device)
        else:
            actions = self.policy.sample(features) if explore else self._best_of_samples(features)
        return self.scale.to_environment(actions), {} if carry is None else {CARRY: carry}, next_carry

    def _best_of_samples(self, features: Tensor) -> Tensor:
        particles = self.policy(features, self.value_particles)  # [N, K, A]
        best = self._wanted(features, particles).argmax(-1)
        return particles[torch.arange(len(best), device=best.device), best]

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics | Update:
        """Descend the losses of critics and policy on one batch and, when it is time, move the targets."""
        self.num_updates += 1
        inputs = self._inputs(batch, phase)
        metrics, errors = self._update_both[self._current](inputs)
        if self.num_updates % self.target_update_every == 0:
            polyak(self.target_critic, self.critic, self.tau)
            polyak(self.target_perception, self.perception, self.tau)
        return Update(metrics, {"priorities": errors}) if "weights" in batch else metrics

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Move the policy alone; the critics are as they are."""
        return self._update_policy(self._inputs(batch, phase))

    @hook(batch=False, group="workflow")
    def plot_values(self, *, phase: Phase) -> Metrics:
        """Draw, for each of `plot_observations`, what the policy wants of every action, and actions that it takes."""
        device, panels = self.task_weights.device, []
        grid = unit_grid(PLOT_SIZE).to(device).unsqueeze(0)
        with isolated_rng(self._plot_seed), torch.no_grad():
            for obs in self.plot_observations:
                row = torch.tensor([obs], device=device)
                features, _, _ = self.perception.step(row, self.initial_carry(1), torch.ones(1, device=device).bool())
                values = self._wanted(features, grid).view(PLOT_SIZE, PLOT_SIZE)
                panels.append(with_dots(heat_map(values), self.policy(features, PLOT_SAMPLES)[0]))
        return {"values": Picture(side_by_side(panels))}

    def _inputs(self, batch: Batch, phase: Phase) -> dict[str, Any]:
        """Return what static functions read, with the scaled rewards [..., tasks]; set what the policy is to want."""
        task, every = phase.get("task"), range(self.num_tasks)
        current = (self.tasks.index(task),) if self.tasks and task is not None else tuple(every)
        if current != self._current:
            self._current = current
            self.task_weights.copy_(torch.tensor([float(number in current) for number in every]))
        rewards = torch.stack([_reward(batch, name) for name in self.tasks or (task,)], -1)
        end = self.reward_scale if self.reward_scale_end is None else self.reward_scale_end
        scale = self.reward_scale + (end - self.reward_scale) * phase.progress
        return {key: batch[key] for key in self.perception.reads if key in batch} | {"rewards": scale * rewards}

    def _learn_both(self, tasks: Sequence[int], batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        self.perception.follow(batch)
        rows = self.perception(batch, self.target_perception, self.gamma)
        metrics, errors = self._descend_critic(rows, tasks)
        return metrics | self._descend_policy(rows.features.detach(), rows.weights), errors

    def _learn_policy(self, batch: Batch) -> dict[str, Tensor]:
        if self.perception.is_recurrent:
            self.perception.follow(batch)
            rows = self.perception(batch, self.target_perception, self.gamma)
            return self._descend_policy(rows.features.detach(), rows.weights)
        features, _, _ = self.perception.step(batch["observations"], None, batch["rewards"])  # statistics stay, too
        return self._descend_policy(features.detach(), batch.get("weights"))

    def _descend_critic(self, rows: Transitions, tasks: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
        """Move these tasks' critics towards their targets; return metrics and the errors [R] that make priorities."""
        targets, actions = self._targets(rows), self.scale.to_unit(rows.actions)
        losses, norms, values, errors = [], [], [], []
        for task in tasks:
            outputs = self.critic[task](rows.features, actions)  # [members, R]
            loss = weighted_mean(self.critic[task].losses(outputs, targets[task]), rows.weights).sum()
            norms.append(self.critics[task].descend(loss))
            losses.append(loss.detach())
            values.append(outputs.detach())
            errors.append((outputs.detach() - targets[task]).abs())
        norm, value = torch.linalg.vector_norm(torch.stack(norms)), torch.cat(values).mean()
        metrics = {"critic_loss": torch.stack(losses).sum(), "critic_grad_norm": norm, "q": value}
        return metrics, torch.cat(errors).mean(0)

    @torch.no_grad()
    def _targets(self, rows: Transitions) -> Tensor:
        """Return `scale r + discount V'(s')`, [tasks, R]."""
        return rows.rewards.T + rows.discounts * self._soft_values(rows.next_target_features)

    def _soft_values(self, features: Tensor) -> Tensor:
        """Return the log of the integral of `exp Q'` over actions [tasks, R], by uniform ones of density 2^-A."""
        states, count, dim = len(features), self.value_particles, self.scale.dim
        particles = torch.rand(1 if self.shared_particles else states, count, dim, device=features.device) * 2.0 - 1.0
        values = self.target_critic(features, particles.expand(states, -1, -1))
        return values.logsumexp(-1) - math.log(count) + dim * math.log(2.0)

    def _descend_policy(self, features: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Move the policy's actions along the Stein direction towards `exp Q`, seen through tanh."""
        with torch.no_grad():
            fixed = self.policy(features, self.num_fixed)  # [R, fixed, A]
        fixed, moved = fixed.requires_grad_(), self.policy(features, self.num_moved)
        log_density = self._wanted(features, fixed) + torch.log(1.0 - fixed.square() + EDGE).sum(-1)
        (scores,) = torch.autograd.grad(log_density.sum(), fixed)
        direction = stein_direction(fixed.detach(), moved.detach(), scores)  # [R, moved, A]
        gains = (moved * direction).sum((1, 2))
        norm = self.actors.descend(-(gains if weights is None else gains * weights).sum())
        length, spread = direction.norm(dim=-1).mean(), fixed.detach().std(1).mean()
        return {"actor_grad_norm": norm, "stein_length": length, "action_spread": spread}

    def _wanted(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return what the policy climbs [R, K]: the values of the phase's task, or the sum over all."""
        return (self.task_weights.view(-1, 1, 1) * self.critic(features, actions)).sum(0)

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the targets wait for."""
        return {"num_updates": self.num_updates}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.num_updates = state["num_updates"]


def _reward(batch: Batch, task: str | None) -> Tensor:
    """Return the environment's reward, or the info that is the reward of a task."""
    if task is None:
        return batch["rewards"]
    if task not in (infos := batch.get("infos", {})):
        raise ConfigError(unknown_name("info that a task is rewarded by", task, infos))
    return infos[task]
