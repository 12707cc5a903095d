"""Mean and variance of a stream, batch by batch (Chan et al., 1979)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean and population variance of a number of samples."""

    mean: Tensor
    var: Tensor
    num_samples: Tensor


def batch_moments(batch: Tensor, count_like: Tensor) -> Moments:
    """Return the moments over the first dimension of `batch`; the count gets the type of `count_like`."""
    mean = batch.mean(0)
    return Moments(mean, (batch - mean).square().mean(0), torch.full_like(count_like, batch.shape[0]))


def merged_moments(a: Moments, b: Moments) -> Moments:
    """Return the moments of both sets of samples together.

    With `d = mean_b - mean_a` and `w = n_b / (n_a + n_b)`: mean `mean_a + w d`, variance
    `(1 - w) var_a + w var_b + w (1 - w) d^2`.
    """
    count = a.num_samples + b.num_samples
    weight = (b.num_samples / count).to(a.mean.dtype)
    delta = b.mean - a.mean
    var = (1 - weight) * a.var + weight * b.var + weight * (1 - weight) * delta.square()
    return Moments(a.mean + weight * delta, var, count)
