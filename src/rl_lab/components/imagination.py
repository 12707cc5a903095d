"""Dreams of a world model: steps that a policy takes in it, and what they are worth."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.components.rssm import RSSM, Latent
from rl_lab.components.scalar_heads import ScalarHead
from rl_lab.components.world_actors import WorldActor
from rl_lab.components.world_model import LATENT, WorldModel
from rl_lab.core import Batch
from rl_lab.ops.returns import lambda_returns, linear_recurrence


class Dream(NamedTuple):
    """Imagined steps, time-major."""

    features: Tensor  # [H + 1, N, F], those of the start first
    actions: Tensor  # [H, N, A]


class Outlook(NamedTuple):
    """What a dream is worth."""

    returns: Tensor  # [H, N] lambda-returns
    baseline: Tensor  # [H, N] what the critic expected
    weights: Tensor  # [H, N] how likely the step is reached, discounted


def imagine(rssm: RSSM, actor: WorldActor, start: Latent, horizon: int) -> Dream:
    """Follow the policy from states [N, ...]; gradients flow through the actions, not through what the actor reads."""
    lead, device = (horizon, len(start.deter)), start.deter.device
    noise, action_noise = rssm.latent_space.noise(lead, device), actor.noise(lead, device)
    latent, features, actions = start, [rssm.features(start)], []
    for step in range(horizon):
        actions.append(actor(features[-1].detach()).sample(action_noise[step]))
        latent = rssm.imagine_step(latent, actions[-1], noise[step])
        features.append(rssm.features(latent))
    return Dream(torch.stack(features), torch.stack(actions))


def outlook(dream: Dream, model: WorldModel, critic: ScalarHead, *, gamma: float, lam: float) -> Outlook:
    """Return the lambda-returns of a dream; the model's continuation, of the start too, discounts what follows."""
    values, cont = critic.mean(critic(dream.features)), model.cont(dream.features)
    gamma = 1.0 if model.folds_discount else gamma
    returns = lambda_returns(model.reward(dream.features[1:]), values[1:], gamma * cont[1:], lam=lam)
    weights = torch.cumprod(gamma * cont, 0)[:-1] / gamma
    return Outlook(returns, values[:-1], weights.detach())


def replay_returns(batch: Batch, imagined: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return lambda-returns and weights [T - 1, B] of replayed steps; `imagined` returns [T, B] stand in for values."""
    rewards, is_last, is_terminal = (batch[key].transpose(0, 1) for key in ("rewards", "is_last", "is_terminal"))
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
    new = {key: leaf.detach().transpose(0, 1)[:, :-1] for key, leaf in latents._asdict().items()}
    return {key: torch.cat([batch[LATENT][key][:, :1], leaf], 1) for key, leaf in new.items()}
