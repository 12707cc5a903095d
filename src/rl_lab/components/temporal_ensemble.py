"""Temporal ensembling of action chunks (ACT, Zhao et al., 2023, https://arxiv.org/abs/2304.13705).

A chunk is planned at every step, and what is done is the mean of all that was ever planned for this step: a plan that
is `i` steps younger than the oldest one weighs `exp(-decay i)`. Motion is smooth, where chunks done one after another
jump from the end of one to the beginning of the next. What is unstable wants the newest plans: a negative decay.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_lab.components.action_chunks import pushed, zeros
from rl_lab.components.model_actions import ModelActions
from rl_lab.core import Actions, Carry, EnvSpec, Observation

Plan = Callable[[Observation], Tensor]  # observations [N, history, ...] -> actions as models read them [N, length, A]


class TemporalEnsemble:
    """Does the weighted mean of all plans for a step; of choices, the one with the highest mean.

    Args:
        plan: Makes plans of numbers in [-1, 1] and of the choices' probabilities.
        code: Between plans and the environment.
        history: Observations that a plan reads.
        length: Steps of a plan.
        decay: How much less a younger plan weighs; 0: as much as an older one; below 0: more.
        spec: Of the environment.
        device: Of the plans.
    """

    def __init__(
        self,
        plan: Plan,
        code: ModelActions,
        *,
        history: int,
        length: int,
        decay: float,
        spec: EnvSpec,
        device: torch.device,
    ) -> None:
        self._plan, self._code, self._history, self._length = plan, code, history, length
        self._spec, self._device = spec, device
        # What the i-th plan of a step weighs among the first i, itself included: no weight can be too large this way.
        shares = 1.0 / torch.exp(decay * torch.arange(length, dtype=torch.float64)).cumsum(0)
        self._shares = shares.float().to(device)

    def initial_carry(self, num_envs: int) -> Carry:
        """Return what was seen and, for the steps ahead, the weighted means of their plans and how many these are."""
        return {
            "observations": zeros(self._spec.observation, num_envs, self._history, device=self._device),
            "means": torch.zeros(num_envs, self._length, self._code.dim, device=self._device),
            "counts": torch.zeros(num_envs, self._length, dtype=torch.int64, device=self._device),
        }

    def __call__(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Return the next action of every environment, and the next carry; all shapes are fixed."""
        seen = pushed(carry["observations"], obs, is_first)
        counts = carry["counts"].masked_fill(is_first[:, None], 0)
        means = carry["means"].lerp(self._plan(seen), self._shares[counts].unsqueeze(-1))  # the first one counts alone
        after = {"means": _moved_on(means), "counts": _moved_on(counts + 1)}
        return self._code.to_environment(means[:, 0]), {"observations": seen, **after}

    def interrupted(self, carry: Carry, is_over: Tensor) -> Carry:
        """Return the carry without any plans where [N] somebody else has acted."""
        return {**carry, "counts": carry["counts"].masked_fill(is_over[:, None], 0)}


def _moved_on(steps: Tensor) -> Tensor:
    """Return what lies ahead [N, length, ...] one step later."""
    return torch.cat([steps[:, 1:], torch.zeros_like(steps[:, :1])], 1)
