"""Actions by flow matching (Lipman et al., 2023, arXiv 2210.02747), with the numbers of pi0 (arXiv 2410.24164)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_lab.components.action_generators import ActionGenerator, Denoiser, weighted_squared_error
from rl_lab.core.ranges import Count, Positive

LEAST_LEVEL = 0.001  # of those that are learned


class FlowMatching(ActionGenerator):
    """Straight ways between actions (level 0) and noise (level 1): learns their velocity, and follows it back.

    Args:
        network: Reads actions on the way; its output is the velocity.
        num_sampling_steps: Steps of Euler on the way back.
        level_power: Levels are drawn from Beta(level_power, 1): above 1 more of them near noise, 1 all alike.
    """

    def __init__(self, network: Denoiser, num_sampling_steps: Count = 10, level_power: Positive = 1.5) -> None:
        super().__init__(network)
        self.num_sampling_steps, self.level_power = num_sampling_steps, level_power

    def loss(self, condition: Any, actions: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the squared error of the velocity `noise - actions` at a random level of each row."""
        uniform = torch.rand(len(actions), device=actions.device)
        level = uniform ** (1.0 / self.level_power) * (1.0 - LEAST_LEVEL) + LEAST_LEVEL
        noise, share = torch.randn_like(actions), level.view(-1, 1, 1)
        noisy = share * noise + (1.0 - share) * actions
        found = self.network(noisy, level, self.network.prepare(condition))
        return weighted_squared_error(found, noise - actions, weights)

    def sample(self, condition: Any, noise: Tensor) -> Tensor:
        """Return where noise flows to."""
        prepared, noisy, count = self.network.prepare(condition), noise, self.num_sampling_steps
        for index in range(count):
            level = torch.full((1,), 1.0 - index / count, device=noise.device)
            noisy = noisy - self.network(noisy, level, prepared).float() / count
        return noisy
