"""Means over the episode that each world is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class EpisodeMeans:
    """Follows named numbers of every world from step to step."""

    def __init__(self, names: Sequence[str], num_envs: int, device: torch.device) -> None:
        self._names = tuple(names)
        self._sums = torch.zeros(len(self._names), num_envs, device=device)
        self._steps = torch.zeros(num_envs, device=device)

    def add(self, values: Tensor) -> None:
        """Take in one step, [names, N]."""
        self._sums, self._steps = self._sums + values, self._steps + 1.0

    def means(self) -> dict[str, Tensor]:
        """Return the means so far, [N] each."""
        return dict(zip(self._names, self._sums / self._steps.clamp_min(1.0), strict=True))

    def restart(self, mask: Tensor) -> None:
        """Begin new episodes in the worlds of `mask`."""
        self._sums, self._steps = torch.where(mask, 0.0, self._sums), torch.where(mask, 0.0, self._steps)

    def get_state(self) -> dict[str, Tensor]:
        """Return sums and counts."""
        return {"sums": self._sums.clone(), "steps": self._steps.clone()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with these sums and counts."""
        self._sums, self._steps = (state[key].to(self._sums.device, copy=True) for key in ("sums", "steps"))
