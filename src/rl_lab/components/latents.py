"""Stochastic parts of a world model's state: Gaussian (PlaNet, DreamerV1) or categorical (DreamerV2 on).

A network puts out `num_params` raw numbers; `belief` makes of them what describes a distribution, one tensor. Noise is
drawn beforehand and for all steps at once, so that a time loop holds no random operation.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.core import ConfigError, unknown_name

LatentKind = Literal["gaussian", "categorical"]
KINDS = ("gaussian", "categorical")
MIN_NOISE = 1e-20  # a draw of exactly 0 would be infinite Gumbel noise


class LatentSpace(nn.Module):
    """A family of distributions over the stochastic part of a state."""

    dim: int  # numbers of a sample
    num_params: int  # raw numbers that describe a belief

    @abstractmethod
    def belief(self, raw: Tensor) -> Tensor:
        """Return what describes the distribution, [..., *belief], of raw outputs [..., num_params]."""

    @abstractmethod
    def noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw the noise of samples with these leading dimensions."""

    @abstractmethod
    def sample(self, belief: Tensor, noise: Tensor) -> Tensor:
        """Return a sample [..., dim] through which gradients flow to the belief."""

    @abstractmethod
    def mode(self, belief: Tensor) -> Tensor:
        """Return the most likely value [..., dim]."""

    @abstractmethod
    def kl(self, left: Tensor, right: Tensor) -> Tensor:
        """Return `KL(left || right)` [...] in nats, summed over variables."""

    @abstractmethod
    def entropy(self, belief: Tensor) -> Tensor:
        """Return the entropy [...] in nats, summed over variables."""


class GaussianLatent(LatentSpace):
    """Independent normals; a belief is mean and standard deviation one after the other.

    Args:
        dim: How many.
        min_std: Smallest standard deviation.
    """

    def __init__(self, dim: int, min_std: float = 0.1) -> None:
        super().__init__()
        self.dim, self.num_params, self.min_std = dim, 2 * dim, min_std

    def belief(self, raw: Tensor) -> Tensor:
        """Return mean and standard deviation `softplus + min_std`."""
        mean, spread = raw.float().chunk(2, -1)
        return torch.cat([mean, F.softplus(spread) + self.min_std], -1)

    def noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw normals."""
        return torch.randn(*shape, self.dim, device=device)

    def sample(self, belief: Tensor, noise: Tensor) -> Tensor:
        """Return `mean + std noise`."""
        mean, std = belief.chunk(2, -1)
        return torch.addcmul(mean, std, noise)

    def mode(self, belief: Tensor) -> Tensor:
        """Return the mean."""
        return belief.chunk(2, -1)[0]

    def kl(self, left: Tensor, right: Tensor) -> Tensor:
        """Return `sum log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2`."""
        (mean1, std1), (mean2, std2) = left.chunk(2, -1), right.chunk(2, -1)
        return ((std2 / std1).log() + (std1.square() + (mean1 - mean2).square()) / (2.0 * std2.square()) - 0.5).sum(-1)

    def entropy(self, belief: Tensor) -> Tensor:
        """Return `sum log(std) + log(2 pi e) / 2`."""
        return (belief.chunk(2, -1)[1].log() + 1.4189385332046727).sum(-1)


class CategoricalLatent(LatentSpace):
    """One-hots of several variables; a belief is their log-probabilities [..., variables, classes].

    Args:
        num_variables: How many.
        num_classes: Of each.
        unimix: Share of the uniform distribution in every belief, which keeps the KL finite.
    """

    def __init__(self, num_variables: int, num_classes: int, unimix: float = 0.01) -> None:
        super().__init__()
        self.num_variables, self.num_classes, self.unimix = num_variables, num_classes, unimix
        self.dim = self.num_params = num_variables * num_classes

    def belief(self, raw: Tensor) -> Tensor:
        """Return log-probabilities, mixed with the uniform distribution."""
        logits = raw.float().unflatten(-1, (self.num_variables, self.num_classes))
        if self.unimix == 0.0:
            return logits.log_softmax(-1)
        return ((1.0 - self.unimix) * logits.softmax(-1) + self.unimix / self.num_classes).log()

    def noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw Gumbel noise."""
        draws = torch.rand(*shape, self.num_variables, self.num_classes, device=device)  # a fifth of exponential_
        return draws.clamp_min_(MIN_NOISE).log_().neg_().clamp_min_(MIN_NOISE).log_().neg_()

    def sample(self, belief: Tensor, noise: Tensor) -> Tensor:
        """Return one-hots by the Gumbel-max trick; their gradient is that of the probabilities."""
        return self._straight_through(belief, belief + noise)

    def mode(self, belief: Tensor) -> Tensor:
        """Return the most likely one-hots, with the gradient of the probabilities."""
        return self._straight_through(belief, belief)

    def _straight_through(self, belief: Tensor, scores: Tensor) -> Tensor:
        one_hot = F.one_hot(scores.argmax(-1), self.num_classes).to(belief.dtype)
        if not torch.is_grad_enabled():
            return one_hot.flatten(-2)
        probs = belief.exp()
        return (one_hot + (probs - probs.detach())).flatten(-2)

    def kl(self, left: Tensor, right: Tensor) -> Tensor:
        """Return `sum p (log p - log q)`."""
        return (left.exp() * (left - right)).sum((-2, -1))

    def entropy(self, belief: Tensor) -> Tensor:
        """Return `-sum p log p`."""
        return -(belief.exp() * belief).sum((-2, -1))


def latent_space(kind: str, num_variables: int, num_classes: int, unimix: float, min_std: float) -> LatentSpace:
    """Return the space of this kind."""
    if kind not in KINDS:
        raise ConfigError(unknown_name("latent", kind, KINDS))
    if kind == "gaussian":
        return GaussianLatent(num_variables, min_std)
    return CategoricalLatent(num_variables, num_classes, unimix)
