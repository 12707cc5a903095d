"""Squashing of numbers of any size, and regression by classification over bins (Hafner et al., 2023)."""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """Return `sign(x) log(1 + |x|)`."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return `sign(x) (exp(|x|) - 1)`, which undoes `symlog`."""
    return x.sign() * x.abs().expm1()


def two_hot_loss(logits: Tensor, targets: Tensor, bins: Tensor) -> Tensor:
    """Return the cross-entropy [...] of logits [..., K] to targets [...] that lie between two of the K rising `bins`.

    A target's weight is split between its neighbours so that their mean is the target; one outside counts as the edge.
    Only two log-probabilities per target are read, no one-hot is made.
    """
    inside = targets.clamp(bins[0], bins[-1])
    above = torch.bucketize(inside.contiguous(), bins).clamp(1, len(bins) - 1)
    low, high = bins[above - 1], bins[above]
    share = (inside - low) / (high - low)  # of the upper neighbour
    log_probs = logits - logits.logsumexp(-1, keepdim=True)
    lower = log_probs.gather(-1, (above - 1).unsqueeze(-1)).squeeze(-1)
    upper = log_probs.gather(-1, above.unsqueeze(-1)).squeeze(-1)
    return -(torch.lerp(lower, upper, share))


def expectation(logits: Tensor, bins: Tensor) -> Tensor:
    """Return `sum softmax(logits) bins` over an odd number of bins that mirror each other around 0.

    Probabilities of mirrored bins are subtracted first: with equal logits the mean is exactly 0, also where a kernel
    rounds a product and a sum only once.
    """
    probabilities = logits.softmax(-1)
    half = bins.shape[0] // 2
    surplus = probabilities[..., half + 1 :] - probabilities[..., :half].flip(-1)
    return (surplus * bins[half + 1 :]).sum(-1)
