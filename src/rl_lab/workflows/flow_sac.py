"""A flow policy that critics improve: `sac_pi0` of Hi-ORS (https://arxiv.org/abs/2510.26406), its terms written out.

First the policy imitates, as in `diffusion_policy`. What it has become is then the reference. Critics learn what chunks
of actions are worth, towards `sum gamma^i r_i + gamma^n min Q'(s', a')`. The policy moves up their value, through all
steps of its flow, without going far from the reference: `-guidance Q(s, a) + distill_weight |a - a_ref|^2`, where both
are drawn out of the same noise. A flow has no density at hand: in spite of the name there is no entropy in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.components.action_chunks import read_chunks
from rl_lab.components.action_values import ActionValues, descend_critics
from rl_lab.components.chunk_policy import HistoryEncoder, Seen
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.learner import Learner, frozen_copy, polyak, trained
from rl_lab.core import Batch, Box, ConfigError, Metrics, Phase, WorkflowContext, hook
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval
from rl_lab.workflows.diffusion_policy import DiffusionPolicy

NEXT = "next_observations"


class FlowSAC(DiffusionPolicy):
    """Imitates by `update_policy`, improves by `update_agent`; components: generator, critic (EnsembleMLP), encoder?.

    Args:
        observation_horizon: Observations that a chunk of actions depends on; the buffer's `history`.
        prediction_horizon: Actions of a chunk, of which critics read all; the buffer's `chunk_length`.
        action_horizon: Actions of a chunk that are done before the next one is drawn.
        average_most: Largest share of itself that the average of the weights keeps, which acts.
        warmup_updates: Updates of imitation until its learning rate is reached.
        gamma: Discount per env step.
        tau: How far the target critics move per update.
        guidance: Weight of the critics' value in the policy's loss.
        distill_weight: Weight of the squared distance to what the reference would do.
        critic_to_actor_ratio: Updates of the critics per update of the policy.
        critic_warmup: Updates of the critics before the first one of the policy.
        max_grad_norm: Longest gradient of each network; null leaves it free.
    """

    accumulates = False  # critics and policy learn from the same rows at once
    imitates = False  # beside a teacher, what was done is what is learned from
    reduces_over_ranks = False  # nobody has compared it with that of one process

    def __init__(
        self,
        *,
        observation_horizon: Count = 1,
        prediction_horizon: Count = 8,
        action_horizon: Count = 8,
        average_most: UnitInterval = 0.99,
        warmup_updates: Natural = 100,
        gamma: UnitInterval = 0.97,
        tau: UnitInterval = 0.005,
        guidance: NonNegative = 1.0,
        distill_weight: NonNegative = 10.0,
        critic_to_actor_ratio: Count = 2,
        critic_warmup: Natural = 150,
        max_grad_norm: Positive | None = 1.0,
    ) -> None:
        super().__init__(
            observation_horizon=observation_horizon,
            prediction_horizon=prediction_horizon,
            action_horizon=action_horizon,
            average_most=average_most,
            learning_rate_schedule="constant",
            warmup_updates=warmup_updates,
            mask_padding=True,
            max_grad_norm=max_grad_norm,
        )
        self.gamma, self.tau, self.guidance, self.distill_weight = gamma, tau, guidance, distill_weight
        self.critic_to_actor_ratio, self.critic_warmup = critic_to_actor_ratio, critic_warmup

    def initialize(self, context: WorkflowContext) -> None:
        """Build the policy, its reference, critics with an encoder of their own and optimisers `critic` and `actor`."""
        super().initialize(context)
        self.reference = frozen_copy(self.policy)
        pictures = self.observation_range.pictures
        cameras = context.components.get("encoder") if pictures else None
        encoder = HistoryEncoder(self.observation_range.vector_dim, pictures, cameras)
        flat = self.prediction_horizon * self.action_dim
        self.critic = ActionValues(context.components["critic"], Box((flat,)))
        _reject_width(self.critic.trunk, self.observation_horizon * encoder.output_dim, flat)
        self.critic_encoder = encoder.to(self._device)
        self.critic.to(self._device)
        self.target_critic, self.target_encoder = frozen_copy(self.critic), frozen_copy(self.critic_encoder)
        norm = self.max_grad_norm
        self.critics = Learner(context, "critic", trained(self.critic_encoder, self.critic), max_grad_norm=norm)
        undecayed = self.policy.generator.network.undecayed()
        self.actors = Learner(context, "actor", trained(self.policy), lr=1e-4, max_grad_norm=norm, undecayed=undecayed)
        self.num_improvements = 0
        self._update_all = context.static(self._learn_all)
        self._update_critic = context.static(self._learn_critic)

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the loss of the critics and, in its turn, that of the policy; the first call sets the reference."""
        horizons = {"history": self.observation_horizon, "chunk_length": self.prediction_horizon}
        chunks = read_chunks(batch, self._spec, **horizons)
        if not self._has_ranges:
            self._fit_ranges(phase)
        if self.num_improvements == 0:
            self.reference.load_state_dict(self.average.module.state_dict())
        self.num_improvements += 1
        late = self.num_improvements > self.critic_warmup
        is_turn = late and self.num_improvements % self.critic_to_actor_ratio == 0
        later = {key: batch[key] for key in ("rewards", NEXT, "terminated")}
        return (self._update_all if is_turn else self._update_critic)({**chunks, **later})

    def _learn_all(self, batch: Batch) -> dict[str, Tensor]:
        return {**self._learn_critic(batch), **self._descend_actor(self.observation_range(batch["observations"]))}

    def _learn_critic(self, batch: Batch) -> dict[str, Tensor]:
        targets = self._targets(batch)
        actions = self.action_range(batch["actions"].reshape(*batch["is_pad"].shape, self.action_dim))
        features = self._features(self.critic_encoder, self.observation_range(batch["observations"]), augment=True)
        metrics, _ = descend_critics(
            self.critic, self.critics, self.critic(features, actions.flatten(1)), targets, None
        )
        polyak(self.target_critic, self.critic, self.tau)
        polyak(self.target_encoder, self.critic_encoder, self.tau)
        return metrics

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """Return `sum gamma^i r_i + gamma^n min Q'(s', a')` over the n steps of a chunk that lie in its episode."""
        seen = self.observation_range(batch[NEXT])
        chunks = self._drawn(self.average.module, seen, self._noise(len(batch["rewards"])))
        values = self.target_critic(self._features(self.target_encoder, seen), chunks).amin(0)
        powers = self.gamma ** torch.arange(self.prediction_horizon, device=values.device)
        discounts = self.gamma ** (~batch["is_pad"]).sum(1) * ~batch["terminated"]
        return (batch["rewards"] * powers).sum(1) + discounts * values

    def _descend_actor(self, seen: Seen) -> dict[str, Tensor]:
        """Move the policy up the mean of the critics, held back by the reference."""
        noise = self._noise(len(seen[0]))
        with torch.no_grad():
            wanted, features = self._drawn(self.reference, seen, noise), self._features(self.critic_encoder, seen)
        chunks = self._drawn(self.policy, seen, noise)
        value = self.critic(features, chunks).mean()
        distance = (chunks - wanted).square().mean()
        norm = self.actors.descend(self.distill_weight * distance - self.guidance * value)
        self.average.update(self.policy)
        return {"actor_q": value.detach(), "distance": distance.detach(), "actor_grad_norm": norm}

    def _drawn(self, policy: Any, seen: Seen, noise: Tensor) -> Tensor:
        """Return flat chunks [B, length * dim] that a policy draws out of noise, in [-1, 1]."""
        own = self.action_dim
        drawn: Tensor = policy.sample(seen, noise[..., :own], noise[..., own:])
        return drawn.clamp(-1.0, 1.0).flatten(1)

    def _noise(self, count: int) -> Tensor:
        """Return noise for all that the network reads, so that two policies can draw out of the same."""
        width = self.action_dim + self.policy.generator.network.padding
        return torch.randn(count, self.prediction_horizon, width, device=self._device)

    @staticmethod
    def _features(encoder: HistoryEncoder, seen: Seen, *, augment: bool = False) -> Tensor:
        features: Tensor = encoder(seen, augment=augment)
        return features.flatten(1)

    def get_state(self) -> dict[str, Any]:
        """Return the numbers of updates."""
        return {**super().get_state(), "num_improvements": self.num_improvements}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        super().set_state(state)
        self.num_improvements = state["num_improvements"]


def _reject_width(trunk: EnsembleMLP, seen: int, acted: int) -> None:
    if trunk.input_dim != seen + acted:
        raise ConfigError(
            f"components.critic.input_dim: must be {seen + acted} ({seen} of what is seen and {acted} of a chunk), "
            f"not {trunk.input_dim}"
        )
