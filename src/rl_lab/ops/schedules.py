"""Learning rates that follow training, as tensors: nothing here waits for the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

KL_TOLERANCE = 2.0  # act when the KL is off by more than this factor
KL_STEP = 1.5  # and change the rate by this factor


def linear_decay(initial: float, progress: float) -> float:
    """Return the rate that falls from `initial` at progress 0 to 0 at progress 1."""
    return initial * max(0.0, 1.0 - progress)


def warm_cosine(initial: float, progress: float, share_of_warm_up: float) -> float:
    """Return the rate that rises linearly to `initial` during a warm-up and falls to 0 at progress 1, as half a cosine.

    `share_of_warm_up` is how much of the warm-up is done, from 0 to 1 and more.
    """
    return initial * min(1.0, share_of_warm_up) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def cosine_decay(initial: float, final: float, update: int, *, warmup: int, decay: int) -> float:
    """Return the rate of an update, counted from 0: openpi's schedule, which Hi-ORS has too.

    It rises linearly from `initial / (warmup + 1)`, reaches `initial` after `warmup` updates, falls as half a cosine
    and stays at `final` from `decay` updates on.
    """
    if update < warmup:
        return initial * (update + 1) / (warmup + 1)
    share = min(1.0, (update - warmup) / max(1, decay - warmup))
    return final + (initial - final) * 0.5 * (1.0 + math.cos(math.pi * share))


def kl_adaptive_rate(rate: Tensor, kl: Tensor, *, desired_kl: float, lowest: float, highest: float) -> Tensor:
    """Return `rate / 1.5` when KL > 2 desired, `rate * 1.5` when 0 < KL < desired / 2, else `rate` (rsl_rl's rule)."""
    slower = kl > desired_kl * KL_TOLERANCE
    faster = (kl < desired_kl / KL_TOLERANCE) & (kl > 0.0)
    adapted = torch.where(slower, rate / KL_STEP, torch.where(faster, rate * KL_STEP, rate))
    return adapted.clamp(lowest, highest)
