"""What is logged of the gradient steps of a policy update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_lab.ops.losses import approximate_kl, clip_fraction

SCALARS = ("policy_loss", "value_loss", "entropy", "grad_norm")
LARGEST_LOG_RATIO = 60.0  # a step that was not taken may be so far off that its ratio is infinite


def summary(
    scalars: Sequence[Any], log_ratios: Sequence[Tensor], keeps: Sequence[Tensor], clip: float
) -> dict[str, Any]:
    """Return the mean terms of the gradient steps that were taken, and how far the policy moved.

    `scalars` are the terms of all steps after each other, in the order of `SCALARS`; `keeps` says which were taken.
    """
    taken = torch.stack(list(keeps)).float()
    terms = torch.stack([torch.as_tensor(scalar) for scalar in scalars])
    kept = torch.where(taken.unsqueeze(-1) > 0.0, terms.view(len(keeps), -1), 0.0)  # a step not taken may be NaN
    means = kept.sum(0) / taken.sum().clamp_min(1.0)
    log_ratio = torch.cat([part.flatten() for part in log_ratios]).clamp_max(LARGEST_LOG_RATIO)
    moved = {"approx_kl": approximate_kl(log_ratio), "clip_fraction": clip_fraction(log_ratio, clip)}
    return dict(zip(SCALARS, means, strict=True)) | moved


def learning_rate(optimizer: torch.optim.Optimizer) -> Tensor | float:
    """Return the learning rate as it is now."""
    rate = optimizer.param_groups[0]["lr"]
    return rate.clone() if isinstance(rate, Tensor) else rate
