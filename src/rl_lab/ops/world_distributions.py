"""Distributions of actions as world models read them: numbers in [-1, 1], choices as one-hots.

Gradients flow through samples: by reparameterisation, or straight through where a sample is a choice or clipped. Noise
may be drawn beforehand and for all steps at once, so that a time loop holds no random operation.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rl_lab.ops.distributions import (
    HALF_LOG_TAU,
    Distribution,
    Values,
    gumbel_perturbed,
    masked_logits,
    tanh_log_det,
)

NUM_MODE_SAMPLES = 100  # of which a tanh-normal's mode is the most likely one; danijar/dreamer
CLIP = 1e-6  # how far truncated samples stay from the bounds; danijar/dreamerv2
LARGEST = 1.0 - 2.0**-24  # below 1 in float32: where atanh and erfinv are still finite


class WorldDistribution(Distribution):
    """A distribution over actions [..., A] whose noise can be drawn apart from it.

    Args:
        parameters: Of the shape of the actions, on their device.
    """

    def __init__(self, parameters: Tensor) -> None:
        self.shape, self.device = parameters.shape, parameters.device

    @staticmethod
    @abstractmethod
    def noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw what `sample` makes actions of this shape from."""

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return an action per batch row, with its gradient; `noise` is drawn now unless it is given."""
        return self._shaped(self.noise(self.shape, self.device) if noise is None else noise)

    @abstractmethod
    def _shaped(self, noise: Tensor) -> Tensor:
        """Return the actions that belong to this noise."""


class OneHot(WorldDistribution):
    """One of n choices as a one-hot, from unnormalised `logits` [..., n].

    Args:
        logits: Of the choices.
        unimix: Share of the uniform distribution that is mixed in.
        mask: False where a choice may not be taken.
    """

    def __init__(self, logits: Tensor, unimix: float = 0.0, mask: Tensor | None = None) -> None:
        super().__init__(logits)
        if unimix == 0.0:
            self.log_probs = masked_logits(logits, mask).log_softmax(-1)
            return
        mixed = ((1.0 - unimix) * logits.softmax(-1) + unimix / logits.shape[-1]).log()
        self.log_probs = mixed if mask is None else masked_logits(mixed, mask).log_softmax(-1)

    @staticmethod
    def noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw Gumbel noise."""
        return gumbel_perturbed(torch.zeros(shape, device=device))

    def mode(self) -> Tensor:
        """Return the most likely choice, with the gradient of the probabilities."""
        return self._straight_through(self.log_probs)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of one-hots, which are taken as they are: no gradient flows into them."""
        return (self.log_probs * actions.detach()).sum(-1)

    def entropy(self) -> Tensor:
        """Return `-sum p log p`."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def expect(self, function: Values) -> tuple[Tensor, ...]:
        """Return the exact means: `function` gets all choices at once, one-hots [n, ..., n] and their log-probs."""
        count, log_probs = self.shape[-1], self.log_probs.movedim(-1, 0)
        choices = torch.eye(count, device=self.device).view(count, *[1] * (len(self.shape) - 1), count)
        found = function(choices.expand(count, *self.shape), log_probs)
        return tuple((log_probs.exp() * values).sum(0) for values in found)

    def _shaped(self, noise: Tensor) -> Tensor:
        return self._straight_through(self.log_probs + noise)

    def _straight_through(self, scores: Tensor) -> Tensor:
        """Return the one-hot of the largest score; its gradient is that of the probabilities."""
        choices = torch.arange(scores.shape[-1], device=scores.device)
        one_hot = (choices == scores.argmax(-1, keepdim=True)).to(self.log_probs.dtype)
        if not torch.is_grad_enabled():
            return one_hot
        probs = self.log_probs.exp()
        return one_hot + (probs - probs.detach())


class MultiOneHot(WorldDistribution):
    """Independent choices as one-hots one after the other, like their `logits` [..., sum(nvec)].

    Args:
        logits: Of the choices.
        nvec: How many choices each of them has.
        unimix: Share of the uniform distribution that is mixed into each.
        mask: False where a choice may not be taken.
    """

    def __init__(self, logits: Tensor, nvec: Sequence[int], unimix: float = 0.0, mask: Tensor | None = None) -> None:
        super().__init__(logits)
        self.nvec = list(nvec)
        masks: Sequence[Tensor | None] = [None] * len(self.nvec) if mask is None else mask.split(self.nvec, -1)
        logits_of_each = logits.split(self.nvec, -1)
        self.parts = [OneHot(part, unimix, allowed) for part, allowed in zip(logits_of_each, masks, strict=True)]

    @staticmethod
    def noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw Gumbel noise."""
        return OneHot.noise(shape, device)

    def mode(self) -> Tensor:
        """Return the most likely choices, with the gradient of the probabilities."""
        return torch.cat([part.mode() for part in self.parts], -1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the sum of the choices' log-probabilities; no gradient flows into the actions."""
        log_probs = torch.cat([part.log_probs for part in self.parts], -1)
        return (log_probs * actions.detach()).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the choices' entropies."""
        log_probs = torch.cat([part.log_probs for part in self.parts], -1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def _shaped(self, noise: Tensor) -> Tensor:
        drawn = zip(self.parts, noise.split(self.nvec, -1), strict=True)
        return torch.cat([part.sample(own) for part, own in drawn], -1)


class Joint(WorldDistribution):
    """Independent distributions side by side: their actions and their noise one after the other.

    Args:
        parts: Of actions with the same leading dimensions.
    """

    def __init__(self, *parts: WorldDistribution) -> None:
        self.parts, self.sizes = parts, [part.shape[-1] for part in parts]
        self.shape, self.device = torch.Size((*parts[0].shape[:-1], sum(self.sizes))), parts[0].device

    def noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:  # type: ignore[override]
        """Draw that of every part."""
        drawn = zip(self.parts, self.sizes, strict=True)
        return torch.cat([part.noise((*shape[:-1], size), device) for part, size in drawn], -1)

    def mode(self) -> Tensor:
        """Return the most likely action of every part."""
        return torch.cat([part.mode() for part in self.parts], -1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the sum of the parts' log-probabilities."""
        return torch.stack([part.log_prob(own) for part, own in self._shared_out(actions)]).sum(0)

    def entropy(self) -> Tensor:
        """Return the sum of the parts' entropies."""
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def _shaped(self, noise: Tensor) -> Tensor:
        return torch.cat([part.sample(own) for part, own in self._shared_out(noise)], -1)

    def _shared_out(self, values: Tensor) -> Iterator[tuple[WorldDistribution, Tensor]]:
        return zip(self.parts, values.split(self.sizes, -1), strict=True)


class BoundedNormal(WorldDistribution):
    """Independent normals (DreamerV3); their means are bounded by who makes them, their samples are not.

    Args:
        mean: Of the actions, [..., A].
        std: Standard deviations, like the mean.
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__(mean)
        self.mean, self.std = mean, std

    @staticmethod
    def noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw standard normals."""
        return torch.randn(shape, device=device)

    def mode(self) -> Tensor:
        """Return the mean."""
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density."""
        return self._log_densities(actions).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy."""
        return (self.std.log() + (HALF_LOG_TAU + 0.5)).sum(-1)

    def _shaped(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.std, noise.to(self.mean.dtype))

    def _log_densities(self, values: Tensor) -> Tensor:
        """Return the log-density of every number."""
        return -0.5 * ((values - self.mean) / self.std).square() - (self.std.log() + HALF_LOG_TAU)


class TanhNormal(BoundedNormal):
    """Independent normals seen through tanh (DreamerV1)."""

    def mode(self) -> Tensor:
        """Return the most likely of 100 samples; it has no closed form."""
        latents = super()._shaped(self.noise((NUM_MODE_SAMPLES, *self.shape), self.device))
        best = self._latent_log_prob(latents).argmax(0)  # [...]
        return latents.gather(0, best[None, ..., None].expand(1, *self.shape)).squeeze(0).tanh()

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density; actions closer to a bound than float32 can tell are taken for the closest."""
        return self._latent_log_prob(actions.clamp(-LARGEST, LARGEST).atanh())

    def entropy(self) -> Tensor:
        """Return a one-sample estimate; there is no closed form."""
        return -self.draw()[1]

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return an action per batch row with its log-density, which is exact also where tanh saturates."""
        latents = super()._shaped(self.noise(self.shape, self.device))
        return latents.tanh(), self._latent_log_prob(latents)

    def _shaped(self, noise: Tensor) -> Tensor:
        return super()._shaped(noise).tanh()

    def _latent_log_prob(self, latents: Tensor) -> Tensor:
        """Return the log-density of `tanh(u)` at the latents `u`."""
        return (self._log_densities(latents) - tanh_log_det(latents)).sum(-1)


class TruncatedNormal(BoundedNormal):
    """Independent normals cut off outside of [-1, 1] (DreamerV2); their means lie inside.

    Args:
        mean: Of the normals before they are cut, [..., A].
        std: Of the normals before they are cut, like the mean.
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__(mean, std)
        self._low, self._high = (-1.0 - mean) / std, (1.0 - mean) / std  # the bounds, in standard deviations
        self._erf_low, self._erf_high = (self._low * math.sqrt(0.5)).erf(), (self._high * math.sqrt(0.5)).erf()

    @staticmethod
    def noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw numbers from [0, 1): how much of the distribution lies below the sample."""
        return torch.rand(shape, device=device)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density of actions in [-1, 1]."""
        return (self._log_densities(actions) - self._mass().log()).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy, `log(std Z sqrt(2 pi e)) + (a phi(a) - b phi(b)) / 2Z` with mass Z."""
        mass = self._mass()
        edges = (self._low * _density(self._low) - self._high * _density(self._high)) / (2.0 * mass)
        return ((self.std * mass).log() + edges + (HALF_LOG_TAU + 0.5)).sum(-1)

    def _shaped(self, noise: Tensor) -> Tensor:
        """Return where the distribution function is `noise`; clipped, with the gradient of what was not."""
        value = self._erf_low + noise * (self._erf_high - self._erf_low)
        actions = self.mean + self.std * (math.sqrt(2.0) * value.clamp(-LARGEST, LARGEST).erfinv())
        clipped = actions.detach().clamp(-1.0 + CLIP, 1.0 - CLIP)
        return clipped + (actions - actions.detach())

    def _mass(self) -> Tensor:
        """Return how much of the normal lies within the bounds."""
        return 0.5 * (self._erf_high - self._erf_low)


def _density(x: Tensor) -> Tensor:
    """Return the density of the standard normal."""
    return (-0.5 * x.square() - HALF_LOG_TAU).exp()
