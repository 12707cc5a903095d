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
    Two log-probabilities per target are read. A kernel of its own would fill the gradient of such a choice with zeros
    first: compiled code has weights of all bins instead, which are never in memory.
    """
    inside = targets.clamp(bins[0], bins[-1])
    above = torch.bucketize(inside.contiguous(), bins).clamp(1, len(bins) - 1)
    low, high = bins[above - 1], bins[above]
    share = (inside - low) / (high - low)  # of the upper neighbour
    if torch.compiler.is_compiling():
        upper, own, place = above.unsqueeze(-1), share.unsqueeze(-1), torch.arange(len(bins), device=bins.device)
        weights = torch.where(place == upper, own, torch.where(place == upper - 1, 1.0 - own, 0.0))
        return logits.logsumexp(-1) - (weights * logits).sum(-1)
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
    if torch.compiler.is_compiling():  # every pair twice: one kernel with the softmax, where halves would be two
        return ((probabilities - probabilities.flip(-1)) * (0.5 * bins)).sum(-1)
    half = bins.shape[0] // 2
    surplus = probabilities[..., half + 1 :] - probabilities[..., :half].flip(-1)
    return (surplus * bins[half + 1 :]).sum(-1)
