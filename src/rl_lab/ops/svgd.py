"""Stein variational gradient descent (Liu and Wang, 2016): where particles move to become samples of a density."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MIN_BANDWIDTH = 1e-3  # of particles that lie on top of each other


def adaptive_kernel(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return `exp(-|x_j - y_i|^2 / h)` [..., J, I] of `x` [..., J, A] and `y` [..., I, A], and `h` [..., 1, 1].

    `h = median / log J`, where the median of the J I squared distances is the (J I // 2 + 1)-th largest of them.
    """
    distances = (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)  # [..., J, I]
    count = distances.shape[-2] * distances.shape[-1]
    median = distances.flatten(-2).topk(count // 2 + 1, -1, sorted=False).values.amin(-1)  # a sixth of a sort's time
    bandwidth = (median / math.log(x.shape[-2])).clamp_min(MIN_BANDWIDTH)[..., None, None]
    return torch.exp(-distances / bandwidth), bandwidth


def stein_direction(fixed: Tensor, moved: Tensor, scores: Tensor) -> Tensor:
    """Return where each particle of `moved` [..., I, A] has to go, [..., I, A].

    It is the mean over the `fixed` particles `a_j` [..., J, A] of `k(a_j, a_i) grad log p(a_j) + grad_j k(a_j, a_i)`,
    with `scores` [..., J, A] as the gradients of the log-density: uphill, and away from each other.
    """
    kernel, bandwidth = adaptive_kernel(fixed, moved)
    towards = kernel.transpose(-1, -2)  # [..., I, J]
    total = towards.sum(-1, keepdim=True)
    repulsion = 2.0 / bandwidth * (moved * total - towards @ fixed)  # sum over j of -2 (a_j - a_i) / h k(a_j, a_i)
    return (towards @ scores + repulsion) / fixed.shape[-2]
