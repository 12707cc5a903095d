"""Action distributions with as few operations as they need: a small network on a CPU spends its time in dispatch.

The last dimension of the parameters is the action's, all others are batch dimensions. `sample` draws from torch's
global stream.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED_LOGIT = -1e8  # finite, so that p log p of a masked action is 0 and not NaN
MIN_NOISE = 1e-20  # an exponential draw of exactly 0 would let a masked action win
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)

Values = Callable[[Any, Tensor], tuple[Tensor, ...]]  # of actions and their log-probabilities


class Distribution(ABC):
    """What a policy needs of the distribution it puts over actions."""

    @abstractmethod
    def sample(self) -> Tensor:
        """Draw one action per batch row."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the most likely action."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability (density) of `actions`, without the action dimension."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, without the action dimension."""

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw one action per batch row and return it with its log-probability."""
        actions = self.sample()
        return actions, self.log_prob(actions)

    def expect(self, function: Values) -> tuple[Tensor, ...]:
        """Return estimates of the means of what `function(actions, log_prob)` returns; gradients flow through them.

        Here from one reparameterised draw; a distribution that can do better does.
        """
        return function(*self.draw())


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return logits under which the actions that `mask` forbids (False) have probability 0."""
    return logits if mask is None else logits.masked_fill(~mask, MASKED_LOGIT)


def gumbel_perturbed(logits: Tensor) -> Tensor:
    """Return logits plus Gumbel noise: its argmax is a sample of the softmax (`-log` of an exponential is Gumbel)."""
    several = torch._C._are_functorch_transforms_active()  # each of them needs numbers of its own to draw over
    drawn = (torch.rand_like if several else torch.empty_like)(logits).exponential_()
    return logits - drawn.clamp_min_(MIN_NOISE).log_()


class Categorical(Distribution):
    """One of n choices, from unnormalised `logits` [..., n]."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self) -> Tensor:
        """Draw by the Gumbel-max trick."""
        return gumbel_perturbed(self.logits).argmax(-1)

    def mode(self) -> Tensor:
        """Return the choice with the largest logit."""
        return self.logits.argmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return `log softmax(logits)[action]`."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return `-sum p log p`."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def expect(self, function: Values) -> tuple[Tensor, ...]:
        """Return the exact means: `function(None, log_probs)` gives the values of all actions, [..., n]."""
        probs = self.log_probs.exp()
        return tuple((probs * values).sum(-1) for values in function(None, self.log_probs))

    @property
    def log_probs(self) -> Tensor:
        """Return the normalised logits, computed once and only when asked for."""
        if "_log_probs" not in self.__dict__:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs


class MultiCategorical(Distribution):
    """Independent choices; `logits` [..., sum(nvec)] holds their logits one after the other."""

    def __init__(self, logits: Tensor, nvec: Sequence[int]) -> None:
        self.logits, self.nvec = logits, list(nvec)

    def sample(self) -> Tensor:
        """Draw every choice by the Gumbel-max trick."""
        return self._argmax(gumbel_perturbed(self.logits))

    def mode(self) -> Tensor:
        """Return the choices with the largest logits."""
        return self._argmax(self.logits)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the sum of the choices' log-probabilities."""
        chosen = zip(self.log_probs, actions.split(1, -1), strict=True)
        return torch.cat([log_probs.gather(-1, action) for log_probs, action in chosen], -1).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the choices' entropies."""
        log_probs = torch.cat(self.log_probs, -1)
        return -(log_probs.exp() * log_probs).sum(-1)

    @property
    def log_probs(self) -> list[Tensor]:
        """Return the normalised logits of each choice, computed once and only when asked for."""
        if "_log_probs" not in self.__dict__:
            self._log_probs = [part.log_softmax(-1) for part in self.logits.split(self.nvec, -1)]
        return self._log_probs

    def _argmax(self, logits: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in logits.split(self.nvec, -1)], -1)


class DiagonalGaussian(Distribution):
    """Independent normals with `mean` [..., A] and `log_std`, either [A] or like the mean."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self) -> Tensor:
        """Draw by reparameterisation."""
        return torch.addcmul(self.mean, torch.randn_like(self.mean), self.log_std.exp())

    def mode(self) -> Tensor:
        """Return the mean."""
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density."""
        z = (actions - self.mean) * (-self.log_std).exp()
        return -0.5 * z.square().sum(-1) - (self.log_std.sum(-1) + HALF_LOG_TAU * actions.shape[-1])

    def entropy(self) -> Tensor:
        """Return the differential entropy; it does not depend on the mean."""
        entropy = self.log_std.sum(-1) + (HALF_LOG_TAU + 0.5) * self.mean.shape[-1]
        return entropy.expand(self.mean.shape[:-1])


class SquashedGaussian(DiagonalGaussian):
    """A diagonal Gaussian seen through tanh, spoken of by its latents `u` (the action is `tanh(u)`).

    Latents keep log-probabilities exact where tanh saturates: nothing is ever inverted.
    """

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density of `tanh(u)` at the latents `u`."""
        return super().log_prob(actions) - tanh_log_det(actions).sum(-1)

    def entropy(self) -> Tensor:
        """Return a one-sample estimate; there is no closed form."""
        return -self.log_prob(self.sample())

    def log_prob_of_each(self, latents: Tensor) -> Tensor:
        """Return the log-densities [..., K, K] of latents [..., K, A] under each of K Gaussians [..., K, A]."""
        return SquashedGaussian(self.mean.unsqueeze(-3), self.log_std.unsqueeze(-3)).log_prob(latents.unsqueeze(-2))

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw latents with their log-density: the noise that made them is known and need not be found again."""
        noise = torch.randn_like(self.mean)
        latents = torch.addcmul(self.mean, noise, self.log_std.exp())
        log_prob = -0.5 * noise.square() - self.log_std - tanh_log_det(latents)
        return latents, log_prob.sum(-1) - HALF_LOG_TAU * latents.shape[-1]


class SquashedMixture(Distribution):
    """A mixture of diagonal Gaussians seen through tanh; `logits` [..., K], `mean` and `log_std` [..., K, A]."""

    def __init__(self, logits: Tensor, mean: Tensor, log_std: Tensor) -> None:
        self.log_weights = logits.log_softmax(-1)
        self.parts = SquashedGaussian(mean, log_std)

    def sample(self) -> Tensor:
        """Draw a component and then latents of it; no gradient flows through the choice."""
        choice = gumbel_perturbed(self.log_weights).argmax(-1)
        return self._of_component(self.parts.sample(), choice)

    def mode(self) -> Tensor:
        """Return the mean of the most likely component."""
        return self._of_component(self.parts.mean, self.log_weights.argmax(-1))

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density of `tanh(u)` at the latents `u`."""
        return (self.log_weights + self.parts.log_prob(actions.unsqueeze(-2))).logsumexp(-1)

    def entropy(self) -> Tensor:
        """Return a one-sample estimate; there is no closed form."""
        return -self.log_prob(self.sample())

    def expect(self, function: Values) -> tuple[Tensor, ...]:
        """Return weighted means over one draw of every component: gradients reach the weights too."""
        latents = self.parts.sample()  # [B, K, A]
        log_prob = (self.log_weights.unsqueeze(-2) + self.parts.log_prob_of_each(latents)).logsumexp(-1)  # [B, K]
        batch, count = log_prob.shape
        weights = self.log_weights.exp()
        found = function(latents.flatten(0, 1), log_prob.flatten())
        return tuple((weights * values.view(batch, count)).sum(-1) for values in found)

    @staticmethod
    def _of_component(values: Tensor, choice: Tensor) -> Tensor:
        index = choice[..., None, None].expand(*choice.shape, 1, values.shape[-1])
        return values.gather(-2, index).squeeze(-2)


def tanh_log_det(latents: Tensor) -> Tensor:
    """Return `log(1 - tanh(u)^2)` as `2 (log 2 - u - softplus(-2u))`, exact also for large |u|."""
    return 2.0 * (math.log(2.0) - latents - F.softplus(-2.0 * latents))
