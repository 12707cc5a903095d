"""TD-MPC and TD-MPC2: planning in a latent model whose values come from temporal differences. Both are switches.

Hansen et al., 2022 (https://arxiv.org/abs/2203.04955) and 2024 (https://arxiv.org/abs/2310.16828). One update: from the
first row of short sequences the model imagines the others by the actions that were taken; its states are to be those of
what was seen, its rewards, ends and values those that came. A policy learns to climb the values. To act, MPPI searches
for the actions whose imagined rewards, and the value behind them, are the highest; the policy proposes some.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rl_lab.components.decisions import Decisions
from rl_lab.components.exploration import reject_long_warm_up
from rl_lab.components.latent_forecast import latent_forecast
from rl_lab.components.latent_model import LatentModel, LatentState
from rl_lab.components.latent_planning import LatentPlanning, discount_of
from rl_lab.components.learner import Learner, descend_as_one, frozen_copy, polyak, trained
from rl_lab.components.observation import action_mask
from rl_lab.components.perception import weighted_mean
from rl_lab.components.planners import Planner
from rl_lab.components.prediction import NUM_PLANNED, evaluate_predictions, planning_gain
from rl_lab.components.q_ensemble import QEnsemble, Reduction, ValueScale
from rl_lab.components.return_scale import follow_all_ranks
from rl_lab.components.world_actors import WorldActor
from rl_lab.core import (
    Actions,
    Batch,
    Carry,
    Extras,
    Metrics,
    Observation,
    Phase,
    Update,
    Workflow,
    WorkflowContext,
    hook,
    tree_map,
)
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval
from rl_lab.ops.prior_distributions import entropy_of_used

Behaviour = tuple[Literal["random", "explore", "plan", "policy"], int]  # and the steps ahead of a plan
KEYS = ("observations", "actions", "rewards", "is_first", "is_terminal", "weights")


class TDMPC(Workflow):
    """TD-MPC for any actions; components: world_model (LatentModel), actor, critic (QEnsemble), planner (MPPI).

    Args:
        gamma: Discount per env step; null: by the length of an episode L, (L/5 - 1) / (L/5) within 0.95 and 0.995.
        rho: What every further step of a sequence weighs, of the one before it.
        consistency_scale: Weight of the squared distance to the states of what was seen, per number.
        reward_scale: Weight of the rewards' loss.
        value_scale: Weight of the critics' loss, their mean.
        cont_scale: Weight of the loss of the end, where the model predicts it.
        consistency_target: Whose states those are: online (the encoder, TD-MPC2) or slow (its moving average, TD-MPC).
        value_reduction: Of values in plans and for the policy: min (TD-MPC) or mean (TD-MPC2); targets take the least.
        scale_values: Whether the policy climbs values in units of their spread (TD-MPC2).
        entropy_scale: Weight of the policy's entropy.
        tau: How far slow networks move when they do; also the rate at which the spread of values is followed.
        target_update_every: Updates between two moves.
        model_grad_norm: Longest gradient of model and critics together; null leaves it free.
        actor_grad_norm: Longest gradient of the policy; null leaves it free.
        num_proposals: Sequences that the policy proposes to the planner.
        horizon_steps: Env steps in which plans grow from one step to the planner's horizon; 0: at once.
        initial_std: Smallest standard deviation of plans at the start; null: the planner's.
        std_steps: Env steps in which it falls to the planner's.
        epsilon: How often a random choice takes the place of a planned one while exploring; numbers get noise.
        random_steps: Env steps with uniformly random actions at the start.
    """

    min_std: Tensor
    reduces_over_ranks = True
    batch_kinds = ("sequences", "prioritized sequences")

    def __init__(
        self,
        *,
        gamma: UnitInterval | None = None,
        rho: UnitInterval = 0.5,
        consistency_scale: NonNegative = 20.0,
        reward_scale: NonNegative = 0.1,
        value_scale: NonNegative = 0.1,
        cont_scale: NonNegative = 1.0,
        consistency_target: Literal["online", "slow"] = "online",
        value_reduction: Reduction = "mean",
        scale_values: bool = True,
        entropy_scale: NonNegative = 1e-4,
        tau: UnitInterval = 0.01,
        target_update_every: Count = 1,
        model_grad_norm: Positive | None = 20.0,
        actor_grad_norm: Positive | None = 20.0,
        num_proposals: Natural = 24,
        horizon_steps: Natural = 0,
        initial_std: Positive | None = None,
        std_steps: Natural = 0,
        epsilon: UnitInterval = 0.05,
        random_steps: Natural = 0,
    ) -> None:
        super().__init__()
        self.scales = {"consistency": consistency_scale, "reward": reward_scale, "value": value_scale}
        self.gamma, self.rho, self.cont_scale, self.consistency_target = gamma, rho, cont_scale, consistency_target
        self.value_reduction: Reduction = value_reduction
        self.value_spread = ValueScale(tau) if scale_values else None
        self.entropy_scale, self.tau, self.target_update_every = entropy_scale, tau, target_update_every
        self.model_grad_norm, self.actor_grad_norm = model_grad_norm, actor_grad_norm
        self.num_proposals, self.horizon_steps, self.random_steps = num_proposals, horizon_steps, random_steps
        self.initial_std, self.std_steps, self.epsilon = initial_std, std_steps, epsilon

    def initialize(self, context: WorkflowContext) -> None:
        """Make the layers and the optimisers `encoder`, `world_model`, `critic` and `actor`."""
        reject_long_warm_up(context, self.random_steps)
        self._take_components(context)
        self.code, self.device, self.num_updates = self.world_model.action_code, context.device, 0
        self.discount = discount_of(context.spec, self.gamma, self.world_model.tasks)
        self.register_buffer("min_std", torch.zeros(()), persistent=False)
        self.to(context.device)
        self.slow_critic = frozen_copy(self.critic)
        self.slow_model = frozen_copy(self.world_model) if self.consistency_target == "slow" else None
        model = self.world_model
        self.models = [
            Learner(context, "encoder", trained(model.encoder, model.project), lr=9e-5),
            Learner(context, "world_model", trained(model.dynamics, model.reward_head, model.cont_head, model.tasks)),
            Learner(context, "critic", trained(self.critic)),
        ]
        self.actors = Learner(context, "actor", trained(self.actor), eps=1e-5, max_grad_norm=self.actor_grad_norm)
        self._explain = context.fuse(self._explained)
        self._climb = follow_all_ranks(self.value_spread, context)(self._actor_loss)
        self._planning = LatentPlanning(
            *(model, self.actor, self.critic, self.planner),
            discount=self.discount,
            reduction=self.value_reduction,
            num_proposals=self.num_proposals,
            fuse=context.fuse,
        )
        self._update = context.static(self._learn)
        self._decisions = Decisions(self._decide, context)

    def _take_components(self, context: WorkflowContext) -> None:
        self.world_model = context.component("world_model", LatentModel)
        self.actor, self.critic = context.component("actor", WorldActor), context.component("critic", QEnsemble)
        self.planner = context.component("planner", Planner)  # type: ignore[type-abstract]
        self.world_model.bind(context.spec, "TD-MPC")
        self.actor.bind(self.world_model.feature_dim, context.spec, "TD-MPC")
        self.critic.bind(self.world_model.joint_dim)
        self.planner.reject_horizon(context.spec)

    def initial_carry(self, num_envs: int) -> Carry:
        """Return an open plan, if the planner goes on with the one before."""
        belief = self.planner.initial_belief(num_envs, self.code, self.device)
        return {} if belief is None else {"plan": belief}

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Plan; with noise where it explores, and at random during the first `random_steps`."""
        behaviour: Behaviour = ("explore" if explore else "plan", self._horizon(step))
        behaviour = ("random", 0) if explore and step < self.random_steps else behaviour
        if self.initial_std is not None:
            share = min(1.0, step / self.std_steps) if self.std_steps else 1.0
            self.min_std.fill_((1.0 - share) * self.initial_std + share * self.planner.min_std)
        actions, carry = self._decisions(behaviour, obs, carry, is_first)
        return actions, {}, carry

    def decide(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Act by the policy that proposes plans: the search itself does not leave the lab."""
        return self._decide(("policy", 0), obs, carry, is_first)

    def _horizon(self, step: int) -> int:
        """Return how many steps ahead plans look by now."""
        share = min(1.0, step / self.horizon_steps) if self.horizon_steps else 1.0
        return 1 + int(share * (self.planner.horizon - 1))

    def _decide(self, behaviour: Behaviour, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        kind, steps = behaviour
        mask, state = action_mask(obs), self.world_model.encode(obs)
        if kind == "random":
            action = self.code.random(len(is_first), self.device, mask)
        elif kind == "policy":
            action = self.actor(self.world_model.features(state), mask).mode()
        else:
            memory = {"belief": carry.get("plan"), "min_std": None if self.initial_std is None else self.min_std}
            plan = self._planning.plan(state, steps, mask=mask, is_first=is_first, **memory)
            action = plan.actions[0]
            carry = {"plan": plan.belief} if carry else carry
            if kind == "explore":
                action = self.code.disturbed(action, plan.std[0], self.epsilon, mask)
        return self.code.to_environment(action if state.used is None else action * state.used), carry

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics | Update:
        """Update model, critics and policy on one batch of sequences."""
        metrics, priorities = self._update({key: batch[key] for key in KEYS if key in batch})
        self.num_updates += 1
        if self.target_update_every > 1 and self.num_updates % self.target_update_every == 0:
            self._move_slow()
        return Update(metrics, {"priorities": priorities}) if "weights" in batch else metrics

    @hook(group="eval", is_update=False)
    @torch.no_grad()
    def evaluate_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Report how well what follows the first rows of sequences is predicted, and what plans gain by it."""
        found = evaluate_predictions(self.world_model, batch, phase, latent_forecast)
        state = self.world_model.encode(tree_map(lambda leaf: leaf[:NUM_PLANNED, 0], batch["observations"]))
        plan = self._planning.plan(state, self.planner.horizon)
        return found | planning_gain(partial(self._planning.worth, state), plan.actions, self.code)

    def _learn(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        rows = tree_map(lambda leaf: leaf.transpose(0, 1), {key: batch[key] for key in KEYS[:-1]})  # [H + 1, B, ...]
        known = (~rows["is_first"][1:]).cumprod(0).float()  # [H, B]: what belongs to the first row's episode
        loss, states, metrics, priorities = self._explain(
            self.world_model.encoder.augmented(rows["observations"]),
            self.code.read(rows["actions"])[1:],
            rows["rewards"][1:],
            (~rows["is_terminal"][1:]).float(),
            known,
            batch.get("weights"),
        )
        metrics["grad_norm"] = descend_as_one(loss, self.models, self.model_grad_norm)
        actor_loss, of_actor = self._climb(states.each(Tensor.detach), known)
        metrics["actor_grad_norm"] = self.actors.descend(actor_loss)
        if self.target_update_every == 1:
            self._move_slow()
        return metrics | of_actor, priorities

    def _explained(
        self, obs: Observation, actions: Tensor, rewards: Tensor, goes_on: Tensor, known: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, LatentState, dict[str, Tensor], Tensor]:
        """Return the loss of sequences, the imagined states [H + 1, B, ...], metrics and priorities [B]."""
        model = self.world_model
        targets, wanted = self._targets(tree_map(lambda leaf: leaf[1:], obs), rewards, goes_on)
        states = model.imagine(model.encode(tree_map(lambda leaf: leaf[0], obs)), actions)
        before, after = states.at(slice(0, -1)), states.at(slice(1, None))
        joint = model.joint(before, actions)
        outputs = self.critic(joint, None, True)  # [M, H, B, k]
        losses = {
            "consistency": (after.z - wanted).square().mean(-1),
            "reward": model.reward_head.losses(model.reward_head(joint), rewards),
            "value": self.critic.losses(outputs, targets.expand(outputs.shape[:-1])).mean(0),
        }
        shares = known * self._shares(len(actions))
        terms = {name: self.scales[name] * (shares * loss).mean(0) for name, loss in losses.items()}  # [B] each
        if model.cont_head is not None:
            ends = model.cont_head.losses(model.cont_head(model.features(after)), goes_on)
            terms["cont"] = self.cont_scale * (known * ends).mean(0)
        loss = weighted_mean(torch.stack(list(terms.values())).sum(0), weights)
        values = self.critic.mean(outputs.detach())
        metrics = {f"{name}_loss": term.detach().mean() for name, term in terms.items()}
        metrics |= {"loss": loss.detach(), "q": values.mean()}
        return loss, states, metrics, (shares * (values - targets).abs().sum(0)).sum(0)

    @torch.no_grad()
    def _targets(self, obs: Observation, rewards: Tensor, goes_on: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values that actions should have [H, B], and the states that they should lead to."""
        state = self.world_model.encode(obs)
        pi, model = self.actor(self.world_model.features(state), action_mask(obs)), self.world_model
        (values,) = pi.expect(lambda action, _: (self.slow_critic.value(model.joint(state, action), "min"),))
        wanted = state if self.slow_model is None else self.slow_model.encode(obs)
        return rewards + state.discount(self.discount) * goes_on * values, wanted.z

    def _actor_loss(self, states: LatentState, known: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the values, and the entropy, of the policy in imagined states [H + 1, B, ...]."""
        pi, model = self.actor(self.world_model.features(states)), self.world_model
        judge = partial(self.critic.value, reduction=self.value_reduction, learns=True, is_frozen=True)
        (values,) = pi.expect(lambda action, _: (judge(model.joint(states, action)),))
        entropy = entropy_of_used(pi, states.used)
        scale = torch.ones_like(values[0, 0]) if self.value_spread is None else self.value_spread(values[0])
        shares = self._shares(len(values)) * torch.cat([torch.ones_like(known[:1]), known])
        loss = -(shares * (values / scale + self.entropy_scale * entropy)).mean()
        return loss, tree_map(Tensor.detach, {"actor_loss": loss, "entropy": entropy.mean(), "value_scale": scale})

    def _shares(self, steps: int) -> Tensor:
        """Return what steps weigh, [steps, 1]."""
        return self.rho ** torch.arange(steps, device=self.device, dtype=torch.float32).unsqueeze(-1)

    def _move_slow(self) -> None:
        polyak(self.slow_critic, self.critic, self.tau)
        if self.slow_model is not None:
            polyak(self.slow_model, self.world_model, self.tau)

    def get_state(self) -> dict[str, Any]:
        """Return the number of updates, which the slow networks' moves count."""
        return {"num_updates": self.num_updates}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.num_updates = state["num_updates"]
