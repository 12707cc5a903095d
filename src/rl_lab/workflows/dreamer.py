"""Dreamer: a world model, and an actor and a critic that learn in what it imagines. All generations are switches.

V1 (Hafner et al., 2020, https://arxiv.org/abs/1912.01603), V2 (2021, https://arxiv.org/abs/2010.02193) and V3 (2023 and
2024, https://arxiv.org/abs/2301.04104). One update: the world model explains a batch of sequences; from every state in
it the actor imagines `horizon` steps; the critic learns the lambda-returns of these, the actor to make them larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rl_lab.components.decisions import Decisions
from rl_lab.components.dynamics import Latent
from rl_lab.components.exploration import reject_long_warm_up
from rl_lab.components.imagination import Dream, Imagination, Replayed, actor_loss, outlook, refreshed, replay_returns
from rl_lab.components.learner import Learner, descend_together, frozen_copy, polyak, set_rates, trained
from rl_lab.components.observation import action_mask
from rl_lab.components.prediction import evaluate_predictions
from rl_lab.components.return_scale import ReturnScale, follow_all_ranks
from rl_lab.components.returns import ReturnKind, return_computer
from rl_lab.components.rssm_cores import split_weights
from rl_lab.components.scalar_heads import ScalarHead, value_loss
from rl_lab.components.world_actors import WorldActor
from rl_lab.components.world_model import LATENT, WorldModel, read_rows
from rl_lab.core import (
    Actions,
    Batch,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    Update,
    Workflow,
    WorkflowContext,
    hook,
)
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval

Behaviour = Literal["random", "sample", "noisy", "mode"]
Losses = tuple[Tensor, Tensor, dict[str, Tensor]]  # of actor and critic, and metrics


class Dreamer(Workflow):
    """Dreamer for any actions; components: world_model, actor (WorldActor), critic (ScalarHead).

    Args:
        gamma: Discount per env step; where the continuation has one folded in (discount_horizon), the same.
        returns: Of dreams: lambda, n_step or monte_carlo.
        lam: Share of longer returns in lambda-returns, of replayed steps too.
        n_step: Imagined steps of n-step returns.
        horizon: Steps of imagination.
        root_cont: Whether it goes on where a dream starts: predicted (V3 of 2024) or recorded (V2, V3 of 2023).
        actor_gradient: dynamics (through the imagined steps), reinforce, or auto: reinforce where actions have choices.
        entropy_scale: Weight of the policy's entropy, in nats.
        return_scale: percentile (advantages in units of the spread of returns, V3) or none.
        slow_target: Whether lambda-returns bootstrap from the slow critic (V2) or from the critic itself.
        slow_weight: Weight of the loss that keeps the critic near the slow one (V3).
        tau: How far the slow critic moves towards the critic when it does; 1: all the way.
        target_update_every: Updates between two moves of the slow critic.
        replay_value_scale: Weight of the critic's loss on replayed steps, of which the model learns too; 0: none (V3).
        store_latents: Record states; batches begin in them, updates refresh them (V3 of 2024; buffer: refreshed).
        joint: Whether all learn from one sum of losses (V3 of 2024; with reinforce only), or first the world model.
        model_grad_norm: Longest gradient of the world model; null leaves it free.
        behavior_grad_norm: Longest gradient of actor and critic; null leaves it free.
        noise_std: Of Gaussian noise on continuous actions while exploring (V1: 0.3).
        epsilon: How often a random choice takes the place of the policy's while exploring, where actions have choices.
        eval_samples: Whether evaluation samples from the policy too (V3) instead of taking its mode.
        random_steps: Env steps with uniformly random actions at the start.
        tanh_rewards: Whether updates see the tanh of rewards (V2 on Atari); returns are reported as they are.
        learning_rate_schedule: constant or linear (to 0 at the end of the phase), of all three optimisers.
    """

    batches_seeds = reduces_over_ranks = True
    batch_kinds = ("sequences",)

    def __init__(
        self,
        *,
        gamma: UnitInterval = 0.997,
        returns: ReturnKind = "lambda",
        lam: UnitInterval = 0.95,
        n_step: Count = 5,
        horizon: Count = 15,
        root_cont: Literal["predicted", "recorded"] = "predicted",
        actor_gradient: Literal["dynamics", "reinforce", "auto"] = "reinforce",
        entropy_scale: NonNegative = 3e-4,
        return_scale: Literal["percentile", "none"] = "percentile",
        slow_target: bool = False,
        slow_weight: NonNegative = 1.0,
        tau: UnitInterval = 0.02,
        target_update_every: Count = 1,
        replay_value_scale: NonNegative = 0.3,
        store_latents: bool = False,
        joint: bool = True,
        model_grad_norm: Positive | None = None,
        behavior_grad_norm: Positive | None = None,
        noise_std: NonNegative = 0.0,
        epsilon: UnitInterval = 0.0,
        eval_samples: bool = True,
        random_steps: Natural = 0,
        tanh_rewards: bool = False,
        learning_rate_schedule: Literal["constant", "linear"] = "constant",
    ) -> None:
        super().__init__()
        if joint and actor_gradient != "reinforce":
            raise ConfigError(f"algorithm.joint: must be false for actor_gradient {actor_gradient}: it would flatter")
        self.gamma, self.lam, self.horizon, self.target_update_every = gamma, lam, horizon, target_update_every
        self.returns = return_computer(returns, lam=lam, n=n_step)
        self.root_cont, self.actor_gradient, self.schedule = root_cont, actor_gradient, learning_rate_schedule
        self.entropy_scale, self.epsilon, self.tanh_rewards = entropy_scale, epsilon, tanh_rewards
        self.return_scale = ReturnScale() if return_scale == "percentile" else None
        self.slow_target, self.slow_weight, self.tau = slow_target, slow_weight, tau
        self.replay_value_scale, self.store_latents, self.is_joint = replay_value_scale, store_latents, joint
        self.model_grad_norm, self.behavior_grad_norm = model_grad_norm, behavior_grad_norm
        self.noise_std, self.eval_samples, self.random_steps = noise_std, eval_samples, random_steps

    def initialize(self, context: WorkflowContext) -> None:
        """Make the layers and the optimisers `world_model`, `actor` and `critic`."""
        reject_long_warm_up(context, self.random_steps)
        self.world_model = context.component("world_model", WorldModel)
        self.actor, self.critic = context.component("actor", WorldActor), context.component("critic", ScalarHead)
        self.world_model.bind(context.spec, "Dreamer", context.fuse, context.seeds)
        self.world_model.check_discount(self.gamma)
        if self.noise_std > 0.0 and self.epsilon == 0.0 and not self.world_model.action_code.num_numbers:
            raise ConfigError("algorithm.noise_std: is for continuous actions (others: algorithm.epsilon)")
        if self.actor_gradient == "auto":
            self.actor_gradient = "reinforce" if self.world_model.action_code.num_choices else "dynamics"
        self.actor.bind(self.world_model.feature_dim, context.spec)
        self.critic.bind(self.world_model.feature_dim)
        self.to(context.device)
        self.slow_critic = frozen_copy(self.critic)
        models, joined = trained(self.world_model), split_weights(self.world_model)
        self.models = Learner(context, "world_model", models, max_grad_norm=self.model_grad_norm, joined=joined)
        self.actors = Learner(context, "actor", trained(self.actor), max_grad_norm=self.behavior_grad_norm)
        self.critics = Learner(context, "critic", trained(self.critic), max_grad_norm=self.behavior_grad_norm)
        self._learners = self.models, self.actors, self.critics
        self._imagine = Imagination(self.world_model.rssm, self.actor, context.fuse)
        self._seeds, self.device, self.num_updates = context.seeds, context.device, 0
        self._decisions = Decisions(self._decide, context)
        self._observe = self._seeds(self, self.world_model.observe)
        self._dream = self._seeds(self, partial(self._imagine.from_batch, horizon=self.horizon))
        self._judge = self._seeds(self, self._judged, follow_all_ranks(self.return_scale, context))
        self._update_all = context.static(self._learn_jointly if self.is_joint else self._learn_in_turn)
        self._update_model = context.static(self._learn_model)
        self._update_behavior = context.static(self._learn_behavior)

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the state and the action before an episode's start."""
        own = partial(self.world_model.initial, num_envs // self._seeds.num, self.device)  # of one agent
        latent = Latent(*self._seeds.rows(self, lambda: tuple(own()))())
        action = torch.zeros(num_envs, self.world_model.action_dim, device=self.device)
        return {"deter": latent.deter.detach(), "stoch": latent.stoch.detach(), "action": action}

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Take the observation into the state and sample an action there."""
        behaviour: Behaviour = "sample" if explore or self.eval_samples else "mode"
        if explore and (step < self.random_steps or max(self.noise_std, self.epsilon) > 0.0):
            behaviour = "random" if step < self.random_steps else "noisy"
        actions, after = self._decisions(behaviour, obs, carry, is_first)
        before = {LATENT: {key: carry[key] for key in Latent._fields}} if self.store_latents else {}
        return actions, before, after

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Remember the actions that were taken: the next state follows from them."""
        return carry | {"action": self.world_model.action_code.read(actions)}

    def _decide(self, behaviour: Behaviour, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        code, before = self.world_model.action_code, Latent(carry["deter"], carry["stoch"])
        latent, mask = self.world_model.observe_step(before, carry["action"], obs, is_first), action_mask(obs)
        if behaviour == "random":
            action = code.random(len(is_first), self.device, mask)
        else:
            pi = self.actor(self.world_model.rssm.features(latent), mask)
            action = pi.mode() if behaviour == "mode" else pi.sample()
        if behaviour == "noisy":
            action = code.disturbed(action, self.noise_std, self.epsilon, mask)
        taken = code.to_environment(action)
        return taken, {**latent._asdict(), "action": code.read(taken)}

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics | Update:
        """Update world model, critic and actor on one batch."""
        rate = set_rates(self._learners, self.schedule, phase.progress)
        found = self._update_all(self._rows(batch))
        self._count_update()
        return self._reported(*found, rate)

    @hook
    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics | Update:
        """Update the world model alone."""
        rate = set_rates(self._learners, self.schedule, phase.progress)
        return self._reported(*self._update_model(self._rows(batch)), rate)

    @hook
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Update critic and actor alone, in dreams of a world model that stays as it is."""
        rate = set_rates((self.actors, self.critics, self.models), self.schedule, phase.progress)
        metrics = self._update_behavior(self._rows(batch))
        self._count_update()
        return {**self._seeds.means(metrics), **rate}

    @hook(group="eval", is_update=False)
    def evaluate_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Report how well what follows the first rows of sequences is predicted from actions alone, by one agent."""
        return self._seeds.first(self, evaluate_predictions)(self.world_model, self._rows(batch), phase)

    def _rows(self, batch: Batch) -> Batch:
        return self._seeds.split(read_rows(batch, tanh_rewards=self.tanh_rewards))

    def _reported(self, learnt: dict[str, Tensor], latents: Latent, rate: dict[str, float]) -> Metrics | Update:
        metrics: Metrics = {**self._seeds.means(learnt), **rate}
        return Update(metrics, {LATENT: self._seeds.merge(latents)}) if self.store_latents else metrics

    def _count_update(self) -> None:
        """Move the slow critic when its time has come, unless every update does that by itself."""
        self.num_updates += 1
        if self.target_update_every > 1 and self.num_updates % self.target_update_every == 0:
            polyak(self.slow_critic, self.critic, self.tau)

    def _learn_jointly(self, batch: Batch) -> tuple[dict[str, Tensor], Any]:
        loss = self.world_model.losses(batch)
        actor_loss, critic_loss, metrics = self._behavior_losses(loss.observed.latents, loss.features, batch)
        norms = descend_together(loss.total + actor_loss + critic_loss, self._learners)
        metrics |= dict(zip(("model_grad_norm", "actor_grad_norm", "critic_grad_norm"), norms, strict=True))
        if self.target_update_every == 1:
            polyak(self.slow_critic, self.critic, self.tau)
        return {**loss.named, **metrics}, refreshed(batch, loss.observed.latents)

    def _learn_in_turn(self, batch: Batch) -> tuple[dict[str, Tensor], Any]:
        loss = self.world_model.losses(batch)
        norm = self.models.descend(loss.total)
        metrics = self._descend_behavior(loss.observed.latents, batch)
        return {**loss.named, "model_grad_norm": norm, **metrics}, refreshed(batch, loss.observed.latents)

    def _learn_model(self, batch: Batch) -> tuple[dict[str, Tensor], Any]:
        loss = self.world_model.losses(batch)
        norm = self.models.descend(loss.total)
        return {**loss.named, "model_grad_norm": norm}, refreshed(batch, loss.observed.latents)

    def _learn_behavior(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            latents = self._observe(batch).latents
        return self._descend_behavior(latents, batch)

    def _descend_behavior(self, latents: Latent, batch: Batch) -> dict[str, Tensor]:
        features = self.world_model.rssm.features(latents).detach()  # the world model does not learn from values
        actor_loss, critic_loss, metrics = self._behavior_losses(latents, features, batch)
        norms = descend_together(actor_loss + critic_loss, self._learners[1:])
        metrics |= {"actor_grad_norm": norms[0], "critic_grad_norm": norms[1]}
        if self.target_update_every == 1:
            polyak(self.slow_critic, self.critic, self.tau)
        return metrics

    def _behavior_losses(self, latents: Latent, features: Tensor, batch: Batch) -> Losses:
        """Return the losses of actor and critic, that on replayed steps included, and metrics."""
        with torch.set_grad_enabled(self.actor_gradient == "dynamics"):
            dream = self._dream(latents)
        return self._judge(dream, features, Replayed(*(batch[key] for key in Replayed._fields)))

    def _judged(self, dream: Dream, features: Tensor, replayed: Replayed) -> Losses:
        """Return the losses of a dream, and of the replayed steps [T, B] that it began in."""
        judge = self.slow_critic if self.slow_target else self.critic
        with torch.set_grad_enabled(self.actor_gradient == "dynamics"):
            first = (~replayed.is_terminal).transpose(0, 1).flatten() if self.root_cont == "recorded" else None
            view = outlook(dream, self.world_model, judge, self.returns, gamma=self.gamma, first=first)
        learn = partial(value_loss, self.critic, self.slow_critic, slow_weight=self.slow_weight)
        critic_loss, values = learn(dream.features[:-1].detach(), view.returns, view.weights)
        through = self.actor_gradient == "dynamics"
        policy_loss, metrics = actor_loss(self.actor, dream, view, self.return_scale, self.entropy_scale, through)
        metrics |= {"actor_loss": policy_loss.detach(), "critic_loss": critic_loss.detach(), "value": values.mean()}
        if self.replay_value_scale > 0.0:
            returns, weights = replay_returns(replayed, view.returns[0].detach(), gamma=self.gamma, lam=self.lam)
            replay_loss, _ = learn(features[:-1], returns, weights)
            metrics["replay_value_loss"] = replay_loss.detach()
            critic_loss = critic_loss + self.replay_value_scale * replay_loss
        return policy_loss, critic_loss, metrics

    @torch.no_grad()
    def imagine(self, start: Latent, *, horizon: int | None = None) -> Dream:
        """Return a dream of the policy from states [N, ...], agent by agent, for whoever wants to look at one."""
        steps = self.horizon if horizon is None else horizon
        follow = self._seeds.rows(self, lambda *states: tuple(self._imagine(Latent(*states), steps)), dim=1)
        return Dream(*follow(*start))

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the slow critic's moves count."""
        return {"num_updates": self.num_updates}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.num_updates = state["num_updates"]
