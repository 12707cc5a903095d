"""Random actions that a spec allows, for checks and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rl_lab.core import ACTION_MASK, Actions, Box, Discrete, Leaf, Observation, VectorEnv, leaves_of, num_choices


class RandomActions:
    """Draws actions from a stream of its own: uniform where bounded, and nothing that `action_mask` forbids."""

    def __init__(self, env: VectorEnv, seed: int = 0) -> None:
        self._space, self._num_envs, self._device = env.spec.action, env.num_envs, env.device
        self._sizes = [num_choices(leaf) for leaf in leaves_of(self._space).values()]
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, observations: Observation) -> Actions:
        """Return one action per copy, on the environment's device."""
        mask = observations.get(ACTION_MASK) if isinstance(observations, Mapping) else None
        if not isinstance(self._space, Mapping):
            return self._part(self._space, mask).to(self._device)
        masks = [None] * len(self._sizes) if mask is None else mask.split(self._sizes, dim=-1)
        parts = zip(self._space.items(), masks, strict=True)
        return {name: self._part(leaf, part).to(self._device) for (name, leaf), part in parts}

    def _part(self, space: Leaf, mask: Tensor | None) -> Tensor:
        if isinstance(space, Box):
            return self._numbers(space)
        if isinstance(space, Discrete):
            return self._choices(space.n, mask)
        masks = [None] * len(space.nvec) if mask is None else mask.split(list(space.nvec), dim=-1)
        return torch.stack([self._choices(n, part) for n, part in zip(space.nvec, masks, strict=True)], dim=-1)

    def _choices(self, n: int, mask: Tensor | None) -> Tensor:
        """Draw one of `n` choices per copy; a mask that allows none is not one."""
        if mask is None:
            return torch.randint(n, (self._num_envs,), generator=self._generator)
        allowed = mask.cpu().float()
        weights = torch.where(allowed.sum(-1, keepdim=True) > 0, allowed, torch.ones_like(allowed))
        return torch.multinomial(weights, 1, generator=self._generator).squeeze(-1)

    def _numbers(self, space: Box) -> Tensor:
        shape = (self._num_envs, *space.shape)
        is_bounded = math.isfinite(space.low) and math.isfinite(space.high)
        if not space.dtype.is_floating_point:
            low, high = (int(space.low), int(space.high)) if is_bounded else (0, 1)
            return torch.randint(low, high + 1, shape, generator=self._generator, dtype=space.dtype)
        if not is_bounded:
            return torch.randn(shape, generator=self._generator, dtype=space.dtype).clamp(space.low, space.high)
        draw = torch.rand(shape, generator=self._generator, dtype=space.dtype)
        return space.low + draw * (space.high - space.low)
