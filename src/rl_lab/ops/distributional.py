"""Distributions of returns: categorical on fixed atoms (Bellemare et al., 2017) and quantiles (Dabney et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor


def project(probs: Tensor, positions: Tensor, support: Tensor) -> Tensor:
    """Return the distribution with `probs` [..., n] at `positions` [..., n], moved onto the atoms `support` [m].

    Mass between two atoms is shared by its distances to them, mass outside goes to the nearest atom. On a GPU and in a
    compiled graph every atom looks at every position, because adding where two meet would not be deterministic.
    """
    spacing = support[1] - support[0]
    probs, inside = torch.broadcast_tensors(probs, positions.clamp(support[0], support[-1]))
    if positions.is_cuda or torch.compiler.is_compiling():
        shares = 1.0 - (inside.unsqueeze(-2) - support.unsqueeze(-1)).abs() / spacing  # [..., m, n]
        shares = shares.clamp_min(0.0)  # by the same name, so that no more than two of this size live at once
        return (shares * probs.unsqueeze(-2)).sum(-1)
    place = (inside - support[0]) / spacing
    below = place.long().clamp_(max=len(support) - 2)
    share = place - below
    result = torch.zeros(*probs.shape[:-1], len(support), dtype=probs.dtype)
    return result.scatter_add_(-1, below, probs * (1.0 - share)).scatter_add_(-1, below + 1, probs * share)


def cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:
    """Return `-sum p log softmax(logits)` over the last dimension."""
    return -(target_probs * logits.log_softmax(-1)).sum(-1)


def quantile_huber(quantiles: Tensor, targets: Tensor, threshold: float = 1.0) -> Tensor:
    """Return the quantile regression loss of `quantiles` [..., n] for target samples [..., m], without both.

    `sum_i mean_j |tau_i - 1(u_ij < 0)| huber(u_ij) / threshold`, where `u_ij = target_j - quantile_i` and
    `tau_i = (i + 1/2) / n`.
    """
    count = quantiles.shape[-1]
    fractions = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., n, m]
    size = errors.abs()
    huber = torch.where(size <= threshold, 0.5 * errors.square(), threshold * (size - 0.5 * threshold))
    weight = (fractions.unsqueeze(-1) - (errors.detach() < 0).to(errors.dtype)).abs()
    return (weight * huber / threshold).mean(-1).sum(-1)
