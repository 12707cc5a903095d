"""Mixtures of normals over single numbers: how likely a number is, and draws at a temperature (Bishop, 1994)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.ops.distributions import HALF_LOG_TAU, gumbel_perturbed


class Mixture(NamedTuple):
    """K normals for each number, all [..., K]."""

    logits: Tensor  # of their shares
    means: Tensor
    log_stds: Tensor


def mixture_log_prob(mixture: Mixture, x: Tensor) -> Tensor:
    """Return the log-densities [...] of numbers [...]: `log sum_k share_k N(x; mean_k, std_k)`."""
    distance = (x.unsqueeze(-1) - mixture.means) * (-mixture.log_stds).exp()
    normal = -0.5 * distance.square() - mixture.log_stds - HALF_LOG_TAU
    return (mixture.logits.log_softmax(-1) + normal).logsumexp(-1)


def mixture_sample(mixture: Mixture, temperature: float = 1.0) -> Tensor:
    """Draw numbers [...]: shares are sharpened by `1 / temperature`, variances multiplied with it (Ha, 2018)."""
    chosen = gumbel_perturbed(mixture.logits / temperature).argmax(-1, keepdim=True)
    mean, log_std = (leaf.gather(-1, chosen).squeeze(-1) for leaf in (mixture.means, mixture.log_stds))
    return mean + math.sqrt(temperature) * log_std.exp() * torch.randn_like(mean)
