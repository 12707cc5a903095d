"""The distributions of `ops.distributions` over NumPy arrays, as far as a gradient step needs them.

Parameters are [B, ...]. `gradients` takes the gradients by `log_prob(actions)` [B] and by each row's entropy, and
returns that by the output of the network and that by the log-std, if there is one.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rl_lab.components.action_heads import ActionHead, GaussianHead
from rl_lab.core import MultiDiscrete
from rl_lab.ops.distributions import HALF_LOG_TAU, MASKED_LOGIT

Array = npt.NDArray[np.float32]


class ArrayDistribution(Protocol):
    """What a gradient step asks of a distribution."""

    def log_prob(self, actions: npt.NDArray[Any]) -> Array:
        """Return the log-probability (density) of each row's action."""

    def entropy(self) -> float:
        """Return the mean entropy in nats."""

    def gradients(
        self, actions: npt.NDArray[Any], log_prob_grad: Array, entropy_grad: float
    ) -> tuple[Array, Array | None]:
        """Return the gradients by the network's output and by the log-std."""


class ArrayCategorical:
    """One of n choices, from logits [B, n]."""

    def __init__(self, logits: Array) -> None:
        shifted = logits - logits.max(-1, keepdims=True)
        p = np.exp(shifted)
        total = p.sum(-1, keepdims=True)
        self._p, self._log_p = p / total, shifted - np.log(total)
        self._rows = np.arange(len(logits))
        self._entropies = -(self._p * self._log_p).sum(-1, keepdims=True)

    def log_prob(self, actions: npt.NDArray[Any]) -> Array:
        """Return `log softmax(logits)[action]`."""
        return self._log_p[self._rows, actions]

    def entropy(self) -> float:
        """Return the mean of `-sum p log p`."""
        return self._entropies.mean()

    def gradients(
        self, actions: npt.NDArray[Any], log_prob_grad: Array, entropy_grad: float
    ) -> tuple[Array, Array | None]:
        """Return `g (onehot - p) - c p (log p + H)`."""
        gradient = self._p * -log_prob_grad[:, None]
        gradient[self._rows, actions] += log_prob_grad
        if entropy_grad:
            gradient -= np.float32(entropy_grad) * self._p * (self._log_p + self._entropies)
        return gradient, None


class ArrayMultiCategorical:
    """Independent choices; logits [B, sum(nvec)]."""

    def __init__(self, logits: Array, nvec: tuple[int, ...]) -> None:
        self._choices = [ArrayCategorical(part) for part in np.split(logits, np.cumsum(nvec)[:-1], -1)]

    def log_prob(self, actions: npt.NDArray[Any]) -> Array:
        """Return the sum of the choices' log-probabilities."""
        parts = [choice.log_prob(actions[:, i]) for i, choice in enumerate(self._choices)]
        return np.sum(parts, axis=0)

    def entropy(self) -> float:
        """Return the sum of the choices' mean entropies."""
        return sum(choice.entropy() for choice in self._choices)

    def gradients(
        self, actions: npt.NDArray[Any], log_prob_grad: Array, entropy_grad: float
    ) -> tuple[Array, Array | None]:
        """Return the gradient choice by choice."""
        parts = [c.gradients(actions[:, i], log_prob_grad, entropy_grad)[0] for i, c in enumerate(self._choices)]
        return np.concatenate(parts, -1), None


class ArrayGaussian:
    """Independent normals with mean [B, A] and a log-std [A] that all rows share."""

    def __init__(self, mean: Array, log_std: Array) -> None:
        self._mean, self._log_std = mean, log_std
        self._precision: Array = np.exp(-log_std)
        self._z = mean  # until actions are known

    def log_prob(self, actions: npt.NDArray[Any]) -> Array:
        """Return the log-density."""
        self._z = z = (actions - self._mean) * self._precision
        constant = self._log_std.sum() + np.float32(HALF_LOG_TAU * z.shape[-1])
        return np.float32(-0.5) * np.einsum("ba,ba->b", z, z) - constant

    def entropy(self) -> float:
        """Return the differential entropy; it is the same for all rows."""
        return self._log_std.sum() + np.float32((HALF_LOG_TAU + 0.5) * len(self._log_std))

    def gradients(
        self, actions: npt.NDArray[Any], log_prob_grad: Array, entropy_grad: float
    ) -> tuple[Array, Array | None]:
        """Return `g z / std` and `sum g (z^2 - 1) + c`, for the actions that `log_prob` was asked about."""
        z, by_z = self._z, log_prob_grad[:, None]
        by_log_std = log_prob_grad @ (z * z) - (log_prob_grad.sum() - np.float32(entropy_grad * len(z)))
        return z * self._precision * by_z, by_log_std


def array_distribution(head: ActionHead, output: Array, mask: npt.NDArray[np.bool_] | None) -> ArrayDistribution:
    """Return the distribution that belongs to an output of a head's only layer."""
    if isinstance(head, GaussianHead):
        return ArrayGaussian(output, head.log_std.data.numpy())
    logits = output if mask is None else np.where(mask, output, np.float32(MASKED_LOGIT))
    space = head.space
    return ArrayMultiCategorical(logits, space.nvec) if isinstance(space, MultiDiscrete) else ArrayCategorical(logits)
