"""Losses and diagnostics of policy-gradient methods. All are means over every dimension.

Losses come with their gradients. They take tensors or, for small networks on a CPU, NumPy arrays: see `namespace`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

Values = Any  # a Tensor or a NumPy array, the same for all arguments of a call


def namespace(x: Values) -> Any:
    """Return the module whose functions take `x`: those used here have one name and one meaning in both."""
    return torch if isinstance(x, Tensor) else np


def clipped_policy_loss(log_ratio: Values, advantages: Values, clip_range: float) -> tuple[Values, Values]:
    """Return PPO's `-mean(min(ratio A, clip(ratio, 1 - c, 1 + c) A))` (Schulman et al., 2017, equation 7).

    Also returns its gradient by the log-probabilities. Written as `min(ratio A, A + c |A|)`, which is the same; where
    the second is smaller the ratio no longer matters.
    """
    xp = namespace(log_ratio)
    gain, bound = xp.exp(log_ratio) * advantages, advantages + clip_range * xp.abs(advantages)
    return -xp.minimum(gain, bound).mean(), gain * (gain <= bound) * (-1.0 / math.prod(gain.shape))


def value_loss(values: Values, targets: Values, old_values: Values, clip_range: float | None) -> tuple[Values, Values]:
    """Return the mean squared error and its gradient by the values.

    With a clip range, the error is that of the value or of the clipped one, whichever is worse.
    """
    error = values - targets
    scale = 2.0 / math.prod(error.shape)
    if clip_range is None:
        return (error * error).mean(), error * scale
    xp, move = namespace(values), values - old_values
    clipped = old_values + xp.clip(move, -clip_range, clip_range) - targets
    counts = (xp.abs(error) >= xp.abs(clipped)) | (xp.abs(move) <= clip_range)  # else the clipped value is a constant
    return xp.maximum(error * error, clipped * clipped).mean(), error * counts * scale


def normalized(x: Values, eps: float = 1e-8) -> Values:
    """Return `x` with mean 0 and standard deviation 1 over all its elements."""
    centred = x - x.mean()
    return centred / (namespace(x).sqrt((centred * centred).mean()) + eps)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Return `mean(ratio - 1 - log ratio)` under the old policy: KL(old, new), unbiased and never negative (k3)."""
    return (torch.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_range: float) -> Tensor:
    """Return how many of the ratios lie outside the clip range, as a fraction."""
    return (torch.expm1(log_ratio).abs() > clip_range).float().mean()


def explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """Return `1 - var(targets - values) / var(targets)`: 1 is perfect, 0 no better than a constant."""
    return 1.0 - (targets - values).var(correction=0) / targets.var(correction=0).clamp_min(1e-8)
