"""A slowly moving average of a network's weights, by which diffusion policies act (Karras et al., 2024, for images)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_lab.components.learner import frozen_copy


class WeightAverage(nn.Module):
    """Holds the average of a module's parameters; it keeps `1 - (1 + updates)^-power` of itself, at most `most`.

    So it follows closely at first, when weights are far from where they will be, and ever more slowly later.

    Args:
        module: What is averaged.
        power: How fast it slows down; 0 is no average.
        most: Largest share that it keeps.
    """

    updates: Tensor

    def __init__(self, module: nn.Module, power: float = 0.75, most: float = 0.9999) -> None:
        super().__init__()
        self.module = frozen_copy(module)
        self.power, self.most = power, most
        self.register_buffer("updates", torch.zeros((), device=next(module.parameters()).device))

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move towards the parameters of `module`; nothing waits for the device."""
        share = (1.0 + self.updates) ** -self.power
        mine: list[Tensor] = list(self.module.parameters())
        theirs: list[Tensor] = list(module.parameters())
        steps = torch._foreach_sub(theirs, mine)
        torch._foreach_mul_(steps, share.clamp(min=1.0 - self.most))
        torch._foreach_add_(mine, list(steps))
        self.updates.add_(1.0)
