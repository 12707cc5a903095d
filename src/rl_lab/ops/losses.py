"""Losses and diagnostics of policy-gradient methods. All are means over every dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def clipped_policy_loss(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """Return PPO's `-mean(min(ratio A, clip(ratio, 1 - c, 1 + c) A))` (Schulman et al., 2017, equation 7).

    Also returns its gradient by the log-probabilities. Written as `min(ratio A, A + c |A|)`, which is the same; where
    the second is smaller the ratio no longer matters.
    """
    gain, bound = log_ratio.exp() * advantages, torch.add(advantages, advantages.abs(), alpha=clip_range)
    return -torch.min(gain, bound).mean(), (gain * (gain <= bound)).mul_(-1.0 / gain.numel())


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor, clip_range: float | None) -> tuple[Tensor, Tensor]:
    """Return the mean squared error and its gradient by the values.

    With a clip range, the error is that of the value or of the clipped one, whichever is worse.
    """
    error = values - targets
    if clip_range is None:
        return error.square().mean(), error * (2.0 / error.numel())
    move = values - old_values
    clipped = old_values + move.clamp(-clip_range, clip_range) - targets
    counts = (error.abs() >= clipped.abs()) | (move.abs() <= clip_range)  # else the clipped value is a constant
    worse = torch.max(error.square(), clipped.square()).mean()
    return worse, torch.where(counts, error, 0.0) * (2.0 / error.numel())


def normalized(x: Tensor) -> Tensor:
    """Return `x` with mean 0 and standard deviation 1 over all its elements."""
    return F.layer_norm(x, x.shape, eps=1e-16)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Return `mean(ratio - 1 - log ratio)` under the old policy: KL(old, new), unbiased and never negative (k3)."""
    return (torch.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_range: float) -> Tensor:
    """Return how many of the ratios lie outside the clip range, as a fraction."""
    return (torch.expm1(log_ratio).abs() > clip_range).float().mean()


def explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """Return `1 - var(targets - values) / var(targets)`: 1 is perfect, 0 no better than a constant."""
    return 1.0 - (targets - values).var(correction=0) / targets.var(correction=0).clamp_min(1e-8)
