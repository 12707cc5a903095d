"""The spread of returns, by which DreamerV3 divides advantages: one entropy bonus then fits rewards of any size."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rl_lab.core import WorkflowContext
from rl_lab.core.context import F, as_it_is
from rl_lab.core.ranks import ALONE, Ranks

LOW, HIGH = 0.05, 0.95  # quantiles


class Scale(nn.Module):
    """What is made of the numbers of a batch, those of all ranks.

    Attributes:
        ranks: Whose numbers it follows.
    """

    ranks: Ranks = ALONE


def follow_all_ranks(scale: Scale | None, context: WorkflowContext) -> Callable[[F], F]:
    """Let a scale, if there is one, follow all ranks; return what fuses functions that call it.

    Where there are several ranks nothing does: what is compiled cannot wait for others.
    """
    if scale is None or context.ranks.size == 1:
        return context.fuse
    scale.ranks = context.ranks
    return as_it_is


class ReturnScale(Scale):
    """Follows the range between the 5th and the 95th percentile of returns by a moving average.

    Args:
        rate: Share of a new batch in the average.
        limit: Smallest scale, so that small returns are not blown up.
    """

    low: Tensor
    high: Tensor

    def __init__(self, rate: float = 0.01, limit: float = 1.0) -> None:
        super().__init__()
        self.rate, self.limit = rate, limit
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def forward(self, returns: Tensor) -> tuple[Tensor, Tensor]:
        """Take a batch of returns into account; return offset and scale."""
        ordered = self.ranks.cat(returns.detach().flatten()).float().sort().values
        self.low.copy_(torch.lerp(self.low, quantile(ordered, LOW), self.rate))
        self.high.copy_(torch.lerp(self.high, quantile(ordered, HIGH), self.rate))
        return self.low.clone(), (self.high - self.low).clamp(min=self.limit)


def quantile(ordered: Tensor, share: float) -> Tensor:
    """Return the quantile of rising numbers [n], interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below)
