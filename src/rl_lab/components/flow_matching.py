"""Actions by flow matching (Lipman et al., 2023, arXiv 2210.02747), with the numbers of pi0 (arXiv 2410.24164)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
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
        padded = F.pad(actions, (0, self.network.padding))
        noise, share = torch.randn_like(padded), level.view(-1, 1, 1)
        noisy = share * noise + (1.0 - share) * padded
        found = self.network(noisy, level, self.network.prepare(condition))
        own = actions.shape[-1]  # what is beside an action teaches nothing
        return weighted_squared_error(found[..., :own], (noise - padded)[..., :own], weights)

    def sample(self, condition: Any, noise: Tensor, beside: Tensor | None = None) -> Tensor:
        """Return where noise flows to."""
        prepared, noisy, count = self.network.prepare(condition), self._padded(noise, beside), self.num_sampling_steps
        for index in range(count):
            level = torch.full((1,), 1.0 - index / count, device=noise.device)
            noisy = noisy - self.network(noisy, level, prepared).float() / count
        return noisy[..., : noise.shape[-1]]

    def _padded(self, noise: Tensor, beside: Tensor | None) -> Tensor:
        """Return noise for all that the network reads."""
        if self.network.padding == 0:
            return noise
        if beside is None:
            beside = torch.randn(*noise.shape[:-1], self.network.padding, device=noise.device)
        return torch.cat([noise, beside], -1)
