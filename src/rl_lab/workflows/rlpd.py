"""RLPD (Ball et al., 2023, https://arxiv.org/abs/2302.02948) as HIL-SERL has it on robots (Luo et al., 2024).

SAC with many critics, each with layer norm, whose batches are half demonstrations; where an operator corrects the
policy, the corrections are demonstrations too (`buffers.demonstrations`, https://arxiv.org/abs/2410.21845). Rewards are
sparse, so that targets leave the entropy out. Hands that only open and close are not steered by the policy: a critic
of what they may be told learns beside it, as in DQN, and the best choice is taken. Everything else is SAC.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from rl_lab.components.action_values import ActionValues, descend_critics
from rl_lab.components.continuous_actions import reject_actions
from rl_lab.components.critic_updates import CriticUpdate
from rl_lab.components.hands import ArmsAndHands, Hands
from rl_lab.components.learner import Learner, frozen_copy, polyak, trained
from rl_lab.components.perception import Transitions, reject_widths
from rl_lab.components.policies import Mask
from rl_lab.core import Batch, Discrete, EnvSpec, WorkflowContext, flat_dim
from rl_lab.core.ranges import Count, Natural, Positive, UnitInterval
from rl_lab.workflows.sac import SAC


class RLPD(SAC):
    """RLPD for continuous actions; components: actor, critic (EnsembleMLP), encoder?, memory?, grasp_critic?.

    Args:
        gamma: Discount per env step; replay buffers take it over.
        tau: How far target networks move towards the critics per update.
        target_entropy: What the temperature is steered to, in nats; auto: minus half the number of action dimensions;
            null: the temperature stays.
        initial_alpha: First temperature.
        backup_entropy: Whether the entropy of later actions is part of a value.
        subset_size: Critics, drawn at random, whose smallest value is the target; null: all.
        critic_to_actor_ratio: Updates of the critics per update of policy and temperature.
        random_steps: Env steps with uniformly random actions at the start.
        normalize_observations: Normalise vectors by running statistics of the batches.
        image_shift: Pixels by which images are moved at random (DrQ: 4); 0: none.
        max_grad_norm: Longest gradient of each network; null leaves it free.
        hands: Entries of the action that are chosen by the grasp critic; null: none are.
        accumulation: Parts of a batch whose gradients, of the critics and encoders, are added up for less memory.
    """

    def __init__(
        self,
        *,
        gamma: UnitInterval = 0.97,
        tau: UnitInterval = 0.005,
        target_entropy: float | Literal["auto"] | None = "auto",
        initial_alpha: Positive = 0.01,
        backup_entropy: bool = False,
        subset_size: Count | None = 2,
        critic_to_actor_ratio: Count = 2,
        random_steps: Natural = 0,
        normalize_observations: bool = False,
        image_shift: Natural = 0,
        max_grad_norm: Positive | None = None,
        hands: Hands | None = None,
        accumulation: Count = 1,
    ) -> None:
        super().__init__(
            gamma=gamma,
            tau=tau,
            target_entropy=target_entropy,
            initial_alpha=initial_alpha,
            actor_reduction="mean",
            subset_size=subset_size,
            policy_delay=critic_to_actor_ratio,
            random_steps=random_steps,
            normalize_observations=normalize_observations,
            image_shift=image_shift,
            max_grad_norm=max_grad_norm,
            accumulation=accumulation,
        )
        self.backup_entropy, self.hands = backup_entropy, hands

    def initialize(self, context: WorkflowContext) -> None:
        """Build SAC for the arms and, where there are hands, the critic of what they are told."""
        self.split = None
        if self.hands is None:
            if isinstance(context.spec.action, Discrete):
                reject_actions(context.spec, "RLPD")
            super().initialize(context)
            return
        self.split = ArmsAndHands(self.hands, context.spec, "RLPD", context.device)
        super().initialize(replace(context, spec=self.split.arm_spec))
        choices = Discrete(self.hands.num_choices)
        self.grasp_critic = ActionValues(context.components["grasp_critic"], choices).to(context.device)
        reject_widths(self.perception, choices, critic=self.grasp_critic.trunk)
        self.target_grasp_critic = frozen_copy(self.grasp_critic)
        parameters = trained(self.grasp_critic)
        self.graspers = Learner(context, "grasp_critic", parameters, max_grad_norm=self.max_grad_norm)

    def _entropy_goal(self, spec: EnvSpec) -> float | None:
        return -0.5 * flat_dim(spec.action) if self.target_entropy == "auto" else super()._entropy_goal(spec)

    def _choose(self, features: Tensor, mask: Mask, *, explore: bool, at_random: bool) -> Tensor:
        """Let the policy steer the arms and the grasp critic choose for the hands."""
        arms = super()._choose(features, mask, explore=explore, at_random=at_random)
        if self.split is None or self.hands is None:
            return arms
        choice = self.grasp_critic(features, None).mean(0).argmax(-1)
        epsilon = 1.0 if at_random else self.hands.epsilon
        return self.split.together(arms, self.split.explored(choice, epsilon) if explore and epsilon > 0.0 else choice)

    @torch.no_grad()
    def _targets(self, rows: Transitions) -> Tensor:
        """Return `r + discount (min Q'(s', a'))`, with the entropy where it is wanted."""
        if self.backup_entropy:
            return super()._targets(rows)
        pi = self.policy(rows.next_features, rows.next_mask)
        _, value = self._soft_terms(pi, self.target_critic, rows.next_target_features, self._lowest)
        return rows.rewards + rows.discounts * value

    def _valued(self, actions: Tensor) -> Tensor:
        """Return what critics read of the actions that were taken: those of the arms nothing of the hands."""
        return super()._valued(actions if self.split is None else self.split.arms(actions))

    def _descend_critic(self, batch: Batch) -> CriticUpdate:
        """Move all critics towards their targets."""
        rows, metrics, errors = super()._descend_critic(batch)
        if self.split is not None:
            metrics |= self._descend_grasp_critic(rows, self.split.chosen(rows.actions))
        return CriticUpdate(rows, metrics, errors)

    def _descend_grasp_critic(self, rows: Transitions, choice: Tensor) -> dict[str, Tensor]:
        """Move the grasp critic towards `r + discount Q'(s', argmax Q(s', .))`; it only reads features."""
        with torch.no_grad():
            best = self.grasp_critic(rows.next_features, None).mean(0).argmax(-1)
            value = self.target_grasp_critic(rows.next_target_features, best).amin(0)
            targets = rows.rewards + rows.discounts * value
        outputs = self.grasp_critic(rows.features, choice)
        metrics, _ = descend_critics(self.grasp_critic, self.graspers, outputs, targets, rows.weights)
        return {"grasp_loss": metrics["critic_loss"], "grasp_q": metrics["q"]}

    def _move_targets(self) -> None:
        super()._move_targets()
        if self.split is not None:
            polyak(self.target_grasp_critic, self.grasp_critic, self.tau)
