"""Proximal policy optimization (Schulman et al., 2017, https://arxiv.org/abs/1707.06347), clipped objective.

Time limits bootstrap from the true last observation and terminations do not. Old values and log-probabilities are those
of the policy that collected, recomputed at the start of an update: nothing has changed since, and `act` stays cheap.
A memory component makes the policy recurrent: minibatches then consist of sequences that start from their stored carry.
Components named in `EXTENSIONS` switch on what happens beside it, at the points of `components.extension`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from rl_lab.components.action_heads import action_head
from rl_lab.components.actor_critic import ActorCritic, Inputs
from rl_lab.components.continuous_actions import reject_actions
from rl_lab.components.decisions import Decisions, StepsByShape
from rl_lab.components.extension import Extensions
from rl_lab.components.flat import FlatActorCritic, bare_step, masked_step, set_capturable, set_learning_rate
from rl_lab.components.normalizer import RewardScaler, normalized_over
from rl_lab.components.paired import PairedActorCritic
from rl_lab.components.policy_steps import learning_rate, summary
from rl_lab.components.sequences import cut_sequences
from rl_lab.core import (
    Actions,
    Batch,
    Carry,
    Extras,
    Metrics,
    Observation,
    Phase,
    Workflow,
    WorkflowContext,
    check_choice,
    hook,
    tree_map,
)
from rl_lab.core.ranges import Count, NonNegative, Positive, UnitInterval
from rl_lab.ops.losses import approximate_kl, clipped_policy_loss, explained_variance, value_loss
from rl_lab.ops.returns import gae
from rl_lab.ops.schedules import kl_adaptive_rate, linear_decay

AdvantageScope = Literal["minibatch", "batch", "none"]
RateSchedule = Literal["constant", "linear", "kl_adaptive"]
FEW_ENVS = 256  # up to here minibatches are small enough for NumPy to win over torch


class PPO(Workflow):
    """PPO for discrete, multi-discrete and continuous actions; components: actor, critic?, encoder?, memory?.

    Args:
        gamma: Discount per env step.
        gae_lambda: Trace decay of the generalised advantages.
        num_epochs: Passes over each rollout.
        num_minibatches: Gradient steps per pass.
        clip_range: The ratio of new to old policy stops paying beyond 1 plus or minus this.
        value_clip_range: How far a value may move per update; None leaves it free.
        value_coef: Weight of the value loss (mean squared error).
        entropy_coef: Weight of the entropy bonus.
        max_grad_norm: Longest gradient; None leaves it free.
        normalize_advantages: Over each minibatch, over the whole batch, or not (none).
        learning_rate_schedule: constant, linear (to 0 at the end of the phase) or kl_adaptive.
        desired_kl: What kl_adaptive steers the KL of an update towards, in nats.
        learning_rate_range: Where kl_adaptive may move the learning rate.
        target_kl: Skip the rest of an update once its KL exceeds this, in nats; None never does.
        normalize_observations: Normalise by running statistics, which change only between updates.
        normalize_rewards: Divide by the running standard deviation of the discounted return.
        initial_log_std: Logarithm of the first standard deviation (continuous actions).
        state_dependent_std: Whether the network puts out the standard deviation (continuous actions).
        squash_actions: Map samples into the bounds by tanh instead of clamping them (continuous actions).
        sequence_length: Steps a memory is trained through at once; divides the rollout's vector steps.
    """

    reduces_over_ranks = True
    EXTENSIONS: ClassVar[tuple[str, ...]] = ("estimator", "rnd", "symmetry")

    def __init__(
        self,
        *,
        gamma: UnitInterval = 0.99,
        gae_lambda: UnitInterval = 0.95,
        num_epochs: Count = 4,
        num_minibatches: Count = 4,
        clip_range: Positive = 0.2,
        value_clip_range: Positive | None = None,
        value_coef: NonNegative = 0.5,
        entropy_coef: NonNegative = 0.0,
        max_grad_norm: Positive | None = 0.5,
        normalize_advantages: AdvantageScope = "minibatch",
        learning_rate_schedule: RateSchedule = "constant",
        desired_kl: Positive = 0.01,
        learning_rate_range: tuple[Positive, Positive] = (1e-5, 1e-2),
        target_kl: Positive | None = None,
        normalize_observations: bool = False,
        normalize_rewards: bool = False,
        initial_log_std: float = 0.0,
        state_dependent_std: bool = False,
        squash_actions: bool = False,
        sequence_length: Count = 16,
    ) -> None:
        super().__init__()
        check_choice("algorithm.normalize_advantages", normalize_advantages, get_args(AdvantageScope))
        check_choice("algorithm.learning_rate_schedule", learning_rate_schedule, get_args(RateSchedule))
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.num_epochs, self.num_minibatches = num_epochs, num_minibatches
        self.clip_range, self.value_clip_range = clip_range, value_clip_range
        self.value_coef, self.entropy_coef, self.max_grad_norm = value_coef, entropy_coef, max_grad_norm
        self.normalize_advantages = normalize_advantages
        self.learning_rate_schedule, self.desired_kl = learning_rate_schedule, desired_kl
        self.learning_rate_range, self.target_kl = learning_rate_range, target_kl
        self.normalize_observations, self.normalize_rewards = normalize_observations, normalize_rewards
        self.head_options: dict[str, Any] = {
            "initial_log_std": initial_log_std,
            "state_dependent_std": state_dependent_std,
            "squash": squash_actions,
        }
        self.sequence_length = sequence_length

    def initialize(self, context: WorkflowContext) -> None:
        """Put heads on the components and build the optimiser `policy` over one flat parameter."""
        if isinstance(context.spec.action, Mapping):
            reject_actions(context.spec, type(self).__name__)
        actor_dim = int(context.components["actor"].output_dim)  # type: ignore[arg-type]
        self.policy = ActorCritic(
            context.spec,
            context.components,
            action_head(actor_dim, context.spec.action, **self.head_options),
            normalize_observations=self.normalize_observations,
            ranks=context.ranks,
        ).to(context.device)
        self.ranks, self.is_recurrent = context.ranks, self.policy.memory is not None
        scaler = RewardScaler(context.num_envs, self.gamma, ranks=self.ranks).to(context.device)
        self.reward_scaler = scaler if self.normalize_rewards else None
        self.extensions = Extensions(context.components, self.EXTENSIONS)
        self.extensions.bind(context, self.policy, self.read)
        is_plain = context.num_envs <= FEW_ENVS and not self.extensions and PairedActorCritic.fits(self.policy)
        self.networks = (PairedActorCritic if is_plain else FlatActorCritic)(self.policy, self.ranks)
        adam = partial(torch.optim.Adam, lr=3e-4, eps=1e-5, fused=True)
        self.optimizer = context.optimizers.build("policy", [self.networks.tensor], default=adam)
        self._step = bare_step(self.optimizer)
        self.initial_lr = float(self.optimizer.param_groups[0]["lr"])
        is_on_gpu = context.device.type == "cuda"
        if self.learning_rate_schedule == "kl_adaptive" or (is_on_gpu and self.learning_rate_schedule == "linear"):
            set_learning_rate(self.optimizer, self.initial_lr, in_tensor=True)  # no step waits for it
        set_capturable(self.optimizer, context.device)
        self._decide: Callable[..., Any] = self._choose
        self._descend: Callable[..., Any] = self._take_step
        if is_on_gpu:  # where kernels are small, and many
            self._decide, self._descend = Decisions(self._choose, context), StepsByShape(self._take_step, context)

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the memory's state at an episode's start."""
        return self.policy.initial_carry(num_envs)

    def read(self, obs: Observation) -> Inputs:
        """Return what the networks read of observations [B, ...]."""
        return self.extensions.inputs(self.policy.inputs(obs))

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Sample, or take the most likely action; record the latents behind continuous actions and the carry before."""
        chosen, next_carry = self._decide(explore, obs, carry, is_first)
        extras: Extras = {"latents": chosen["latents"]} if "latents" in chosen else {}
        if self.is_recurrent:
            extras["carry"] = carry
        return chosen["actions"], extras, next_carry

    def _choose(self, explore: bool, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Any, Carry]:
        """Return `actions`, the `latents` behind them where they are not the same, and the next carry."""
        pi, next_carry = self.networks.policy(self.read(obs), carry, is_first)
        latents = pi.sample() if explore else pi.mode()
        actions = self.policy.head.to_environment(latents)
        return {"actions": actions} if actions is latents else {"actions": actions, "latents": latents}, next_carry

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Several epochs of minibatch ascent on the clipped objective over one rollout [T, N, ...]."""
        if self.learning_rate_schedule == "linear":
            set_learning_rate(self.optimizer, linear_decay(self.initial_lr, phase.progress))
        rollout, fit = self._evaluate(batch, phase.progress)
        scalars: list[Any] = []
        log_ratios: list[Tensor] = []
        keeps: list[Tensor] = []
        keep = torch.ones((), dtype=torch.bool, device=fit.device)
        for _ in range(self.num_epochs):
            for minibatch in self._minibatches(rollout):
                terms, log_ratio, keep = self._descend(minibatch, keep)
                scalars += terms
                log_ratios.append(log_ratio)
                keeps.append(keep)
        learned = self.extensions.learn(batch, self.policy)
        self.policy.update_normalizer(batch["observations"])
        steps = summary(scalars, log_ratios, keeps, self.clip_range)
        return steps | {"learning_rate": learning_rate(self.optimizer), "explained_variance": fit} | learned

    @torch.no_grad()
    def _evaluate(self, batch: Batch, progress: float = 0.0) -> tuple[dict[str, Any], Tensor]:
        """Return what minibatches are made of, in rows, and how well the old values explain their targets."""
        shape = batch["rewards"].shape
        rows = tree_map(lambda x: x.flatten(0, 1), dict(batch))  # [T N, ...]: stored carries make every step a start
        latents = rows.get("latents", rows["actions"])
        inputs = self.read(rows["observations"])
        pi, values, carry = self.policy(inputs, rows.get("carry"), rows["is_first"])
        never = torch.zeros_like(rows["is_first"])  # what a step led to belongs to the same episode
        next_values = self.policy.value(self.read(rows["final_observations"]), carry, never)
        dones = batch["terminated"] | batch["truncated"]
        rewards = batch["rewards"]
        if self.reward_scaler is not None:
            self.reward_scaler.update(rewards, dones)
            rewards = self.reward_scaler(rewards)
        advantages = gae(
            self.extensions.rewards(batch, rewards, progress),
            values.view(shape),
            next_values.view(shape),
            batch["terminated"],
            batch["truncated"],
            gamma=self.gamma,
            lam=self.gae_lambda,
        ).flatten()
        targets = advantages + values
        if self.normalize_advantages == "batch":
            advantages = normalized_over(self.ranks, advantages)
        rollout = {
            "inputs": inputs,
            "latents": latents,
            "log_probs": pi.log_prob(latents),
            "values": values,
            "advantages": advantages,
            "targets": targets,
            **self.extensions.rows(rows["observations"]),
        }
        if self.is_recurrent:
            rollout |= {"is_first": rows["is_first"], "carry": rows["carry"]}
            rollout = cut_sequences(rollout, self.sequence_length, *shape)
        return self.networks.native(rollout), explained_variance(values, targets)

    def _minibatches(self, rollout: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Shuffle the rows (or sequences) once and yield slices of them."""
        rows = (slice(None),) if self.is_recurrent else ()  # sequences lie along the second dimension
        num_rows = rollout["values"].shape[len(rows)]
        order = self.networks.native(torch.randperm(num_rows, device=self.networks.tensor.device))
        shuffled = tree_map(lambda x: x[(*rows, order)], rollout)
        size = -(-num_rows // self.num_minibatches)
        for start in range(0, num_rows, size):
            part = (*rows, slice(start, start + size))
            minibatch = tree_map(lambda x, part=part: x[part], shuffled)
            if self.normalize_advantages == "minibatch":
                minibatch["advantages"] = normalized_over(self.ranks, minibatch["advantages"])
            yield minibatch

    def _take_step(self, minibatch: dict[str, Any], keep: Tensor) -> tuple[list[Any], Tensor, Tensor]:
        """Take a gradient step; return its terms, log(new / old) probability, and whether the update still goes on."""
        terms, log_ratio = self._differentiate(minibatch)
        keep = self._follow_kl(log_ratio, keep)
        self._step() if self.target_kl is None else masked_step(self.optimizer, keep)
        return terms, log_ratio, keep

    def _differentiate(self, minibatch: dict[str, Any]) -> tuple[list[Any], Tensor]:
        """Set the gradient of the objective (to be minimised); return its terms, and log(new / old) probability."""
        losses, num_rows = self.extensions.losses(minibatch, self.policy), len(minibatch["values"])
        minibatch = self.extensions.widen(minibatch)
        carry = tree_map(lambda x: x.squeeze(0), minibatch.get("carry"))
        now = self.networks.evaluate(minibatch["inputs"], carry, minibatch.get("is_first"), minibatch["latents"])
        log_ratio = now.log_prob - minibatch["log_probs"]
        policy_loss, by_log_prob = clipped_policy_loss(log_ratio, minibatch["advantages"], self.clip_range)
        critic_loss, by_value = value_loss(now.values, minibatch["targets"], minibatch["values"], self.value_clip_range)
        norm = self.networks.set_gradient(
            by_log_prob, -self.entropy_coef, self.value_coef * by_value, self.max_grad_norm, *losses
        )
        done = torch.as_tensor(log_ratio[:num_rows])  # the KL is of what was done, not of rows that were added
        return [policy_loss, critic_loss, now.entropy, norm], done

    def _follow_kl(self, log_ratio: Tensor, keep: Tensor) -> Tensor:
        """Adapt the learning rate, and return whether the update still goes on; both without waiting for the device."""
        if self.learning_rate_schedule != "kl_adaptive" and self.target_kl is None:
            return keep
        kl = self.ranks.mean_(approximate_kl(log_ratio))
        if self.learning_rate_schedule == "kl_adaptive":
            group, (low, high) = self.optimizer.param_groups[0], self.learning_rate_range
            rate = kl_adaptive_rate(group["lr"], kl, desired_kl=self.desired_kl, lowest=low, highest=high)
            group["lr"].copy_(rate)
        return keep if self.target_kl is None else keep & (kl <= self.target_kl)

    def get_state(self) -> dict[str, Any]:
        """Return the discounted returns that the reward scale follows, one per environment; states of extensions."""
        returns = {} if self.reward_scaler is None else {"returns": self.reward_scaler.returns}
        return returns | ({"extensions": self.extensions.get_state()} if self.extensions else {})

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        if self.reward_scaler is not None:
            self.reward_scaler.returns.copy_(state["returns"])
        if self.extensions:
            self.extensions.set_state(state["extensions"])
