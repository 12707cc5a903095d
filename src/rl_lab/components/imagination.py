"""Dreams of a world model: steps that a policy takes in it, and what they are worth."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.components.dynamics import Dynamics, Latent
from rl_lab.components.learner import frozen
from rl_lab.components.precision import lower_precision
from rl_lab.components.returns import ReturnComputer
from rl_lab.components.scalar_heads import ScalarHead
from rl_lab.components.scan import Fuse, Scan, Step, Tensors
from rl_lab.components.world_actors import WorldActor
from rl_lab.components.world_model import LATENT, WorldModel
from rl_lab.core import Batch, ConfigError
from rl_lab.core.context import as_it_is
from rl_lab.ops.returns import linear_recurrence

GAMMA_ROUNDING = 1e-4  # 0.997 is as good as 1 - 1/333


class Dream(NamedTuple):
    """Imagined steps, time-major."""

    features: Tensor  # [H + 1, N, F], those of the start first
    actions: Tensor  # [H, N, A]


class Outlook(NamedTuple):
    """What a dream is worth."""

    returns: Tensor  # [H, N]
    baseline: Tensor  # [H, N] what the critic expected
    weights: Tensor  # [H, N] how likely the step is reached, discounted


class Replayed(NamedTuple):
    """Steps of a batch [B, T]."""

    rewards: Tensor
    is_last: Tensor
    is_terminal: Tensor


class DreamStep(Step):
    """Takes one step of the policy in the model: state to next state and the action between them.

    Args:
        rssm: The model.
        actor: The policy; no gradient flows through what it reads.
    """

    def __init__(self, rssm: Dynamics, actor: WorldActor) -> None:
        super().__init__()
        self.rssm, self.actor, self.heads = rssm, actor, actor.heads

    def forward(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the next state, and the action."""
        latent, (noise, action_noise) = Latent(*carry), inputs
        action = self.actor(self.rssm.features(latent).detach()).sample(action_noise)
        return *self.rssm.imagine_step(latent, action, noise), action


class Imagination:
    """Follows a policy in a model; gradients flow through the actions to the policy, not to the model.

    Args:
        rssm: The model.
        actor: The policy.
        fuse: Makes kernels of the steps.
    """

    def __init__(self, rssm: Dynamics, actor: WorldActor, fuse: Fuse = as_it_is) -> None:
        self._rssm, self._actor = rssm, actor
        self._dreaming = Scan(DreamStep(rssm, actor), fuse, learned=actor)

    def __call__(self, start: Latent, horizon: int) -> Dream:
        """Return what happens from states [N, ...]."""
        lead, device = (horizon, len(start.deter)), start.deter.device
        noise = self._rssm.latent_space.noise(lead, device), self._actor.noise(lead, device)
        deter, stoch, actions = self._dreaming(tuple(start), noise)
        lower = None if torch.is_grad_enabled() else lower_precision(device)
        visited = (
            torch.cat([_lowered(first, lower).unsqueeze(0), _lowered(later, lower)])
            for first, later in zip(start, (deter, stoch), strict=True)
        )
        return Dream(self._rssm.features(Latent(*visited)), actions)

    def from_batch(self, latents: Latent, horizon: int) -> Dream:
        """Return what happens from all states [T, B, ...] of a batch."""
        return self(Latent(*(leaf.detach().flatten(0, 1) for leaf in latents)), horizon)


def check_discount(gamma: float, model: WorldModel) -> None:
    """Refuse a discount that is not the one which the model's continuation has folded in, if it has."""
    if model.folds_discount and abs(gamma - model.cont_target) > GAMMA_ROUNDING:
        folded = f"components.world_model.discount_horizon discounts by {model.cont_target:.4g}"
        raise ConfigError(f"algorithm.gamma: {gamma:g}, while {folded}; they must be the same")


def outlook(
    dream: Dream,
    model: WorldModel,
    critic: ScalarHead,
    returns_of: ReturnComputer,
    *,
    gamma: float,
    first: Tensor | None = None,
) -> Outlook:
    """Return the returns of a dream; the model's continuation discounts what follows.

    Whether the episode goes on from where the dream starts is `first` [N], where that is known, else predicted too.
    """
    values, cont = critic.mean(frozen(critic)(dream.features)), model.cont(dream.features)
    gamma = 1.0 if model.folds_discount else gamma
    returns = returns_of(model.reward(dream.features[1:]), values[1:], gamma * cont[1:])
    start = cont[:1] if first is None else first.unsqueeze(0).to(cont.dtype)
    weights = torch.cumprod(torch.cat([start, gamma * cont[1:-1]]), 0)
    return Outlook(returns, values[:-1], weights.detach())


def replay_returns(replayed: Replayed, imagined: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return lambda-returns and weights [T - 1, B] of replayed steps; `imagined` returns [T, B] stand in for values."""
    rewards, is_last, is_terminal = (leaf.transpose(0, 1) for leaf in replayed)
    live = gamma * (~is_terminal[1:]).to(rewards.dtype)
    traces = lam * (~is_last[1:]).to(rewards.dtype)
    ahead = rewards[1:] + (1.0 - traces) * live * imagined[1:]
    ahead = torch.cat([ahead[:-1], ahead[-1:] + (traces * live * imagined[1:])[-1:]])  # nothing follows the last row
    carried = torch.cat([(traces * live)[:-1], torch.zeros_like(ahead[-1:])])
    return linear_recurrence(carried, ahead), (~is_last[:-1]).to(rewards.dtype)


def refreshed(batch: Batch, latents: Latent) -> dict[str, Tensor]:
    """Return the states [B, T, ...] before each row as an update saw them [T, B, ...]; those before the first stay."""
    if LATENT not in batch:
        return {}
    new = {key: leaf.detach().transpose(-2, -3)[..., :-1, :] for key, leaf in latents._asdict().items()}
    return {key: torch.cat([batch[LATENT][key][..., :1, :], leaf], -2) for key, leaf in new.items()}


def _lowered(states: Tensor, lower: torch.dtype | None) -> Tensor:
    """Return states as the products that read them would make them: once, and not for each of them."""
    return states if lower is None else states.to(lower)
