"""How far chances can be believed: reliability by bins and the expected calibration error (Guo et al., 2017)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Reliability(NamedTuple):
    """What was said and what came, for each of `K` bins of chances; 0 where a bin has nothing."""

    said: Tensor  # [K] mean chance
    came: Tensor  # [K] how often it was so
    share: Tensor  # [K] of all weight; together 1

    @property
    def error(self) -> Tensor:
        """Return the expected calibration error: sum of share |said - came|."""
        return (self.share * (self.said - self.came).abs()).sum()


def reliability(chances: Tensor, outcomes: Tensor, weights: Tensor, num_bins: int) -> Reliability:
    """Return the table of chances [B] in [0, 1] against outcomes [B] of 0 and 1, each weighted by `weights` [B]."""
    index = (chances * num_bins).long().clamp(0, num_bins - 1)
    zeros = torch.zeros(num_bins, dtype=chances.dtype, device=chances.device)
    weight, said, came = (zeros.index_add(0, index, weights * x) for x in (torch.ones_like(chances), chances, outcomes))
    held = weight.clamp_min(torch.finfo(weight.dtype).tiny)
    return Reliability(said / held, came / held, weight / weights.sum())
