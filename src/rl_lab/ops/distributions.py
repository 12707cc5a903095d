"""Action distributions with as few operations as they need: a small network on a CPU spends its time in dispatch.

The last dimension of the parameters is the action's, all others are batch dimensions. `sample` draws from torch's
global stream.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED_LOGIT = -1e8  # finite, so that p log p of a masked action is 0 and not NaN
MIN_NOISE = 1e-20  # an exponential draw of exactly 0 would let a masked action win
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


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


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return logits under which the actions that `mask` forbids (False) have probability 0."""
    return logits if mask is None else logits.masked_fill(~mask, MASKED_LOGIT)


def gumbel_perturbed(logits: Tensor) -> Tensor:
    """Return logits plus Gumbel noise: its argmax is a sample of the softmax (`-log` of an exponential is Gumbel)."""
    return logits - torch.empty_like(logits).exponential_().clamp_min_(MIN_NOISE).log_()


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


def tanh_log_det(latents: Tensor) -> Tensor:
    """Return `log(1 - tanh(u)^2)` as `2 (log 2 - u - softplus(-2u))`, exact also for large |u|."""
    return 2.0 * (math.log(2.0) - latents - F.softplus(-2.0 * latents))
