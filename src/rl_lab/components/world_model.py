"""A world model: encoder, dynamics and heads that are trained together to explain sequences.

Dreamer and PlaNet own one under the same name, so that a checkpoint of the one can be planned with or imagined in by
the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Gt
from torch import Tensor, nn

from rl_lab.components.dynamics import Dynamics, Latent, Observed
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.components.scan import Fuse
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.core import Actions, Batch, ConfigError, EnvSpec, Observation, tree_map, unknown_name
from rl_lab.core.context import as_it_is
from rl_lab.core.ranges import NonNegative
from rl_lab.core.seeds import ONE_AGENT, Seeds

KL_FORMS = ("step", "mean", "balanced", "separate")
GAMMA_ROUNDING = 1e-4  # 0.997 is as good as 1 - 1/333
LATENT = "latent"  # what act records of the state beside an action
BATCH_KEYS = ("observations", "actions", "rewards", "is_first", "is_last", "is_terminal", LATENT)


def read_rows(batch: Batch, *, tanh_rewards: bool = False) -> Batch:
    """Return what a world model reads of a batch."""
    rows = {key: batch[key] for key in BATCH_KEYS if key in batch}
    return rows | {"rewards": rows["rewards"].tanh()} if tanh_rewards else rows


@dataclass(frozen=True)
class KLTerms:
    """How far the prior may be from the posterior.

    Args:
        form: step (PlaNet: both learn from one KL, free nats of every step), mean (DreamerV1: the same, free nats of
            the mean), balanced (V2: each from its own, free nats of the mean) or separate (V3: each from its own, free
            nats of every step).
        free_nats: Below it nothing is learned from the KL.
        dyn_scale: Weight of the prior's loss; of both for the forms step and mean.
        rep_scale: Weight of the posterior's loss.
    """

    form: Literal["step", "mean", "balanced", "separate"] = "separate"
    free_nats: NonNegative = 1.0
    dyn_scale: NonNegative = 1.0
    rep_scale: NonNegative = 0.1

    def __post_init__(self) -> None:
        if self.form not in KL_FORMS:
            raise ConfigError(unknown_name("components.world_model.kl.form", self.form, KL_FORMS))


KL_TERMS = KLTerms()


class WorldLoss(NamedTuple):
    """What a batch says of the model."""

    terms: dict[str, Tensor]  # weighted scalars, to be summed
    observed: Observed  # [T, B, ...]
    features: Tensor  # [T, B, F]
    metrics: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        """Return the sum of the terms."""
        return torch.stack(list(self.terms.values())).sum(0)

    @property
    def named(self) -> dict[str, Tensor]:
        """Return terms and metrics under the names they are logged by."""
        return {**{f"{name}_loss": term.detach() for name, term in self.terms.items()}, **self.metrics}


class WorldModel(nn.Module):
    """Explains what was seen, and predicts what will be.

    Args:
        encoder: From observations to tokens.
        rssm: The states and how they follow each other: an RSSM, or other dynamics.
        decoder: From states back to observations.
        reward: Predicts rewards.
        cont: Predicts whether the episode goes on; null: it always does.
        kl: How prior and posterior learn from each other.
        decoder_scale: Weight of the observations' loss.
        reward_scale: Weight of the reward's loss.
        cont_scale: Weight of the continuation's loss.
        discount_horizon: Steps after which a continuing episode is discounted away: the continuation learns
            `1 - 1 / steps` instead of 1, and is the discount (DreamerV3, 2024); null: it is a plain probability.
    """

    def __init__(
        self,
        encoder: WorldEncoder,
        rssm: Dynamics,
        decoder: WorldDecoder,
        reward: ScalarHead,
        cont: ContinueHead | None = None,
        *,
        kl: KLTerms = KL_TERMS,
        decoder_scale: NonNegative = 1.0,
        reward_scale: NonNegative = 1.0,
        cont_scale: NonNegative = 1.0,
        discount_horizon: Annotated[float, Gt(1)] | None = None,
    ) -> None:
        super().__init__()
        if cont is None and discount_horizon is not None:
            raise ConfigError(
                "components.world_model.discount_horizon: is learned by cont, and cont is null: set it to null"
            )
        self.encoder, self.rssm, self.decoder, self.reward_head, self.cont_head = encoder, rssm, decoder, reward, cont
        self.kl_terms = kl
        self.decoder_scale, self.reward_scale, self.cont_scale = decoder_scale, reward_scale, cont_scale
        self.cont_target = 1.0 if discount_horizon is None else 1.0 - 1.0 / discount_horizon

    def bind(self, spec: EnvSpec, workflow: str, fuse: Fuse = as_it_is, seeds: Seeds = ONE_AGENT) -> None:
        """Make the layers for an environment; `workflow` is who asks, for errors, `fuse` makes kernels of parts."""
        self.action_code = ModelActions(spec, workflow)
        self.encoder.bind(spec.observation)
        self.rssm.bind(self.encoder.output_dim, self.action_dim, fuse)
        self.decoder.bind(self.feature_dim, spec.observation, self.rssm.deter_dim)
        self.reward_head.bind(self.feature_dim)
        if self.cont_head is not None:
            self.cont_head.bind(self.feature_dim)
        self._observe, self._explain = seeds(self, self.observe), seeds(self, self._explained, fuse)

    @property
    def action_dim(self) -> int:
        """Return the numbers that the model reads of an action."""
        return self.action_code.dim

    @property
    def folds_discount(self) -> bool:
        """Return whether the continuation is the discount."""
        return self.cont_target < 1.0

    @property
    def feature_dim(self) -> int:
        """Return the numbers that heads read of a state."""
        return self.rssm.feature_dim

    def check_discount(self, gamma: float) -> None:
        """Refuse a discount that is not the one which the continuation has folded in, if it has."""
        if self.folds_discount and abs(gamma - self.cont_target) > GAMMA_ROUNDING:
            folded = f"components.world_model.discount_horizon discounts by {self.cont_target:.4g}"
            raise ConfigError(f"algorithm.gamma: {gamma:g}, while {folded}; they must be the same")

    def actions(self, actions: Actions) -> Tensor:
        """Return what the model reads [..., A] of actions of the environment: one-hots, or numbers in [-1, 1]."""
        return self.action_code.read(actions)

    def initial(self, batch: int, device: torch.device) -> Latent:
        """Return the states at an episode's start."""
        return self.rssm.initial(batch, device)

    def observe_step(self, latent: Latent, action: Tensor, obs: Observation, is_first: Tensor) -> Latent:
        """Return the state after an observation; `action` [B, A] led to it."""
        return self.rssm.observe_step(latent, action, self.encoder(obs), is_first)

    def observe(self, batch: Batch) -> Observed:
        """Filter a batch [B, T, ...] from the states its first rows began with, if they were recorded."""
        rows = tree_map(lambda leaf: leaf.transpose(0, 1), read_rows(batch))
        start = self._start(rows)
        tokens = self.encoder(rows["observations"])
        return self.rssm.observe(tokens, self.actions(rows["actions"]), rows["is_first"], start)

    def _start(self, rows: Batch) -> Latent:
        """Return the recorded states before the first rows, or those of an episode's start."""
        if LATENT not in rows:
            return self.initial(rows["is_first"].shape[1], rows["is_first"].device)
        return Latent(rows[LATENT]["deter"][0], rows[LATENT]["stoch"][0])

    def losses(self, batch: Batch) -> WorldLoss:
        """Return the losses of a batch [B, T, ...], or of one for each agent; gradients flow through all of a model."""
        observed = self._observe(batch)
        seen = (batch[key] for key in ("observations", "rewards", "is_terminal"))
        terms, features, metrics = self._explain(observed, *seen)
        return WorldLoss(terms, observed, features, metrics)

    def _explained(
        self, observed: Observed, obs: Observation, rewards: Tensor, is_terminal: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Return the losses by name, the features of the states and metrics, for what was seen [B, T, ...]."""
        features = self.rssm.features(observed.latents)
        obs, rewards, is_terminal = tree_map(lambda leaf: leaf.transpose(0, 1), (obs, rewards, is_terminal))
        terms, metrics = self._kl_losses(observed)
        for key, values in self.decoder.losses(features, obs).items():
            terms[f"decoder_{key}"] = self.decoder_scale * values.mean()
        terms["reward"] = self.reward_scale * self.reward_head.losses(self.reward_head(features), rewards).mean()
        if self.cont_head is not None:
            goes_on = self.cont_target * (~is_terminal).to(rewards.dtype)
            terms["cont"] = self.cont_scale * self.cont_head.losses(self.cont_head(features), goes_on).mean()
        else:
            metrics["unmodelled_ends"] = is_terminal.float().mean()
        return terms, features, metrics

    def _kl_losses(self, observed: Observed) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of prior and posterior."""
        kl, options = self.rssm.latent_space.kl, self.kl_terms
        posterior, prior = observed.posterior, observed.prior
        dyn = kl(posterior.detach(), prior)  # [T, B]: teaches the prior
        metrics = {"kl": dyn.detach().mean(), "prior_entropy": self._entropy(prior)}
        metrics["posterior_entropy"] = self._entropy(posterior)
        free = options.free_nats
        if options.form in ("step", "mean"):
            one = kl(posterior, prior)  # [T, B]: teaches both
            one = one.clamp(min=free).mean() if options.form == "step" else one.mean().clamp(min=free)
            return {"kl": options.dyn_scale * one}, metrics
        rep = kl(posterior, prior.detach())  # [T, B]: teaches the posterior
        if options.form == "balanced":
            parts = dyn.mean().clamp(min=free), rep.mean().clamp(min=free)
        else:
            parts = dyn.clamp(min=free).mean(), rep.clamp(min=free).mean()
        return {"dyn": options.dyn_scale * parts[0], "rep": options.rep_scale * parts[1]}, metrics

    def _entropy(self, belief: Tensor) -> Tensor:
        return self.rssm.latent_space.entropy(belief.detach()).mean()

    def reward(self, features: Tensor) -> Tensor:
        """Return expected rewards [...] of arriving at states."""
        return self.reward_head.mean(self.reward_head(features))

    def cont(self, features: Tensor) -> Tensor:
        """Return how likely [...] the episode goes on from states; without a head it always does."""
        if self.cont_head is None:
            return torch.ones(features.shape[:-1], device=features.device)
        return self.cont_head.probability(self.cont_head(features))
