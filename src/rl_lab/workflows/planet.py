"""PlaNet: planning in the latent space of a learned world model (Hafner et al., 2019, https://arxiv.org/abs/1811.04551).

There is no policy. An update teaches the world model to explain sequences; to act, the state is filtered with each new
observation, and a planner searches for the actions whose imagined rewards are the highest. The first of them is done,
and then the search begins again. Where the model has a continue head, rewards after a probable end count less.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rl_lab.components.decisions import Decisions
from rl_lab.components.dynamics import Latent
from rl_lab.components.exploration import reject_long_warm_up
from rl_lab.components.imagination import Dream
from rl_lab.components.learner import Learner, trained
from rl_lab.components.observation import action_mask
from rl_lab.components.planners import Planner
from rl_lab.components.prediction import NUM_PLANNED, evaluate_predictions, planning_gain
from rl_lab.components.rssm_cores import split_weights
from rl_lab.components.world_model import WorldModel, read_rows
from rl_lab.core import (
    Actions,
    Batch,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    Workflow,
    WorkflowContext,
    hook,
    tree_map,
)
from rl_lab.core.ranges import Natural, NonNegative, Positive, UnitInterval

Behaviour = Literal["random", "noisy", "plan"]


class PlaNet(Workflow):
    """PlaNet for any actions; components: world_model (WorldModel), planner (CEM or MPPI).

    Args:
        random_steps: Env steps with uniformly random actions at the start: the seed episodes.
        noise_std: Exploration with continuous actions: standard deviation of normal noise, actions being in [-1, 1].
        epsilon: Exploration with discrete actions: how often a random one takes the place of the planned one.
        max_grad_norm: Longest gradient of the world model; null leaves it free.
    """

    batches_seeds = True
    batch_kinds = ("sequences",)

    def __init__(
        self,
        *,
        random_steps: Natural = 0,
        noise_std: NonNegative = 0.3,
        epsilon: UnitInterval = 0.1,
        max_grad_norm: Positive | None = 1000.0,
    ) -> None:
        super().__init__()
        self.random_steps, self.noise_std, self.epsilon = random_steps, noise_std, epsilon
        self.max_grad_norm = max_grad_norm

    def initialize(self, context: WorkflowContext) -> None:
        """Bind world model and planner, and build the optimiser `world_model`."""
        reject_long_warm_up(context, self.random_steps)
        model, planner = context.component("world_model", WorldModel), context.components["planner"]
        if not isinstance(planner, Planner):
            raise ConfigError("components.planner: needs a planner (choices: CEM, MPPI of rl_lab.components.planners)")
        model.bind(context.spec, "PlaNet", context.fuse, context.seeds)
        self._device, self.code, self._seeds = context.device, model.action_code, context.seeds
        planner.reject_horizon(context.spec)
        self.world_model, self.planner = model.to(self._device), planner
        bound, joined = self.max_grad_norm, split_weights(model)
        self.models = Learner(
            context, "world_model", trained(model), lr=1e-3, eps=1e-4, max_grad_norm=bound, joined=joined
        )
        self._update = context.static(lambda batch: self._learn(self._seeds.split(batch)))
        self._decisions = Decisions(self._decide, context)

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the state before an episode, the action before it and, if the planner wants one, an open plan."""
        own = partial(self.world_model.initial, num_envs // self._seeds.num, self._device)  # of one agent
        latent = Latent(*self._seeds.rows(self, lambda: tuple(own()))())
        action = torch.zeros(num_envs, self.code.dim, device=self._device)
        belief = self.planner.initial_belief(num_envs, self.code, self._device)
        carry = {"deter": latent.deter.detach().clone(), "stoch": latent.stoch.detach().clone(), "action": action}
        return carry if belief is None else carry | {"plan": belief}

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Filter the state, and plan; with noise where it explores, and at random during the first `random_steps`."""
        behaviour: Behaviour = "plan"
        if explore:
            behaviour = "random" if step < self.random_steps else "noisy"
        actions, carry = self._decisions(behaviour, obs, carry, is_first)
        return actions, {}, carry

    def decide(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Refuse: there is no policy that could leave the lab."""
        raise ConfigError("PlaNet has no policy to export: a planner chooses its actions (Dreamer learns one)")

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Remember the actions that were taken: the next state follows from them."""
        return carry | {"action": self.code.read(actions)}

    def _decide(self, behaviour: Behaviour, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Return actions and the next carry."""
        latent = Latent(carry["deter"], carry["stoch"])
        latent = self.world_model.observe_step(latent, carry["action"], obs, is_first)
        mask = action_mask(obs)
        carry = carry | {"deter": latent.deter, "stoch": latent.stoch}
        if behaviour == "random":
            action = self.code.random(len(is_first), self._device, mask)
            return self.code.to_environment(action), carry | {"action": action}
        plan = self.planner.plan(
            partial(self._worth, latent),
            len(is_first),
            self.code,
            self._device,
            belief=carry.get("plan"),
            is_first=is_first,
            mask=mask,
        )
        action = plan.actions[0]
        if behaviour == "noisy":
            action = self.code.disturbed(action, self.noise_std, self.epsilon, mask)
        carry = carry | {"action": action} | ({"plan": plan.belief} if "plan" in carry else {})
        return self.code.to_environment(action), carry

    def _worth(self, latent: Latent, sequences: Tensor) -> Tensor:
        """Return the imagined rewards [N, K] of sequences [H, N, K, A] from states [N, ...], summed."""
        model, count = self.world_model, sequences.shape[2]
        actions = sequences.flatten(1, 2)  # [H, N K, A]
        start = Latent(*(leaf.repeat_interleave(count, 0) for leaf in latent))
        features = model.rssm.features(model.rssm.imagine(start, actions))
        rewards = model.reward(features)
        if model.cont_head is not None:
            goes_on = model.cont(features)[:-1]  # the reward of an end itself counts, none after it does
            rewards = torch.cat([rewards[:1], rewards[1:] * goes_on.cumprod(0)])
        return rewards.sum(0).view(-1, count)

    @hook
    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the world model's losses on one batch of sequences."""
        return self._seeds.means(self._update(read_rows(batch)))

    @hook(group="eval", is_update=False)
    @torch.no_grad()
    def evaluate_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Report how well what follows the first rows is predicted, and what plans gain by it, by one agent."""
        return self._seeds.first(self, self._evaluated)(self._seeds.split(read_rows(batch)), phase)

    def _evaluated(self, batch: Batch, phase: Phase) -> Metrics:
        found = evaluate_predictions(self.world_model, batch, phase)
        rows = tree_map(lambda leaf: leaf[:NUM_PLANNED, 0], batch)
        before = self.world_model.initial(len(rows["is_first"]), self._device)
        action = self.code.read(rows["actions"])
        latent = self.world_model.observe_step(before, action, rows["observations"], rows["is_first"])
        worth = partial(self._worth, latent)
        plan = self.planner.plan(worth, len(action), self.code, self._device)
        return found | planning_gain(worth, plan.actions, self.code)

    @torch.no_grad()
    def imagine(self, start: Latent, actions: Tensor | None = None) -> Dream:
        """Return what follows states [N, ...] when `actions` [H, N, A] are taken, or else those of a plan."""
        if actions is None:
            actions = self._seeds.rows(self, self._planned, dim=1)(*start)
        features = self._seeds.rows(self, self._visited, dim=1)(*start, actions.transpose(0, 1))
        return Dream(features, actions)

    def _planned(self, *start: Tensor) -> Tensor:
        worth = partial(self._worth, Latent(*start))
        return self.planner.plan(worth, len(start[0]), self.code, self._device).actions

    def _visited(self, deter: Tensor, stoch: Tensor, actions: Tensor) -> Tensor:
        """Return the features [H + 1, N, F] of states and of those that actions [N, H, A] lead to."""
        start = Latent(deter, stoch)
        later = self.world_model.rssm.imagine(start, actions.transpose(0, 1))
        visited = (torch.cat([first.unsqueeze(0), rest]) for first, rest in zip(start, later, strict=True))
        return self.world_model.rssm.features(Latent(*visited))

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        found = self.world_model.losses(batch)
        loss = found.total
        norm = self.models.descend(loss)
        return {"loss": loss.detach(), "grad_norm": norm, **found.named}
