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


class DifferentiableDistribution(Distribution):
    """One whose gradients are written out, for those who do without autograd. Parameters are [B, ...]."""

    @abstractmethod
    def gradients(self, actions: Tensor, log_prob_grad: Tensor, entropy_grad: float) -> list[Tensor]:
        """Return the gradients by its parameters, given those by `log_prob(actions)` [B] and by each entropy."""


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return logits under which the actions that `mask` forbids (False) have probability 0."""
    return logits if mask is None else logits.masked_fill(~mask, MASKED_LOGIT)


def gumbel_perturbed(logits: Tensor) -> Tensor:
    """Return logits plus Gumbel noise: its argmax is a sample of the softmax (`-log` of an exponential is Gumbel)."""
    return logits - torch.empty_like(logits).exponential_().clamp_min_(MIN_NOISE).log_()


class Categorical(DifferentiableDistribution):
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

    def gradients(self, actions: Tensor, log_prob_grad: Tensor, entropy_grad: float) -> list[Tensor]:
        """Return `g (onehot - p) - c p (log p + H)`, the gradient by the logits."""
        p, g = self.log_probs.exp(), log_prob_grad.unsqueeze(-1)
        gradient = (p * -g).scatter_add_(-1, actions.unsqueeze(-1), g)
        if entropy_grad:
            gradient.addcmul_(p, self.log_probs + self.entropy().unsqueeze(-1), value=-entropy_grad)
        return [gradient]

    @property
    def log_probs(self) -> Tensor:
        """Return the normalised logits, computed once and only when asked for."""
        if "_log_probs" not in self.__dict__:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs


class MultiCategorical(DifferentiableDistribution):
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

    def gradients(self, actions: Tensor, log_prob_grad: Tensor, entropy_grad: float) -> list[Tensor]:
        """Return the gradient by the logits, choice by choice."""
        choices = zip(self.logits.split(self.nvec, -1), actions.unbind(-1), strict=True)
        parts = [Categorical(part).gradients(action, log_prob_grad, entropy_grad)[0] for part, action in choices]
        return [torch.cat(parts, -1)]

    @property
    def log_probs(self) -> list[Tensor]:
        """Return the normalised logits of each choice, computed once and only when asked for."""
        if "_log_probs" not in self.__dict__:
            self._log_probs = [part.log_softmax(-1) for part in self.logits.split(self.nvec, -1)]
        return self._log_probs

    def _argmax(self, logits: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in logits.split(self.nvec, -1)], -1)


class DiagonalGaussian(DifferentiableDistribution):
    """Independent normals with `mean` [..., A] and `log_std`, either [A] or like the mean."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std
        self._actions: Tensor | None = None  # for which _z holds

    def sample(self) -> Tensor:
        """Draw by reparameterisation."""
        return torch.addcmul(self.mean, torch.randn_like(self.mean), self.log_std.exp())

    def mode(self) -> Tensor:
        """Return the mean."""
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density."""
        z, _ = self._standardised(actions)
        return z.square().sum(-1).mul(-0.5) - (self.log_std.sum(-1) + HALF_LOG_TAU * actions.shape[-1])

    def entropy(self) -> Tensor:
        """Return the differential entropy; it does not depend on the mean."""
        entropy = self.log_std.sum(-1) + (HALF_LOG_TAU + 0.5) * self.mean.shape[-1]
        return entropy.expand(self.mean.shape[:-1])

    def gradients(self, actions: Tensor, log_prob_grad: Tensor, entropy_grad: float) -> list[Tensor]:
        """Return `g z / std` by the mean and `sum g (z^2 - 1) + c` by a log-std that all rows share."""
        z, precision = self._standardised(actions)
        by_log_std = log_prob_grad @ z.square() - (log_prob_grad.sum() - entropy_grad * len(z))
        return [z * precision * log_prob_grad.unsqueeze(-1), by_log_std]

    def _standardised(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (z, 1 / std), computed once for the same actions."""
        if self._actions is not actions:
            precision = (-self.log_std).exp()
            self._actions, self._z = actions, ((actions - self.mean) * precision, precision)
        return self._z


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
