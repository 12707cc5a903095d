"""Exploration beside a policy: Gaussian and Ornstein-Uhlenbeck noise, and how long actions are drawn at random."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl_lab.core import Carry, ConfigError, WorkflowContext, unknown_name

NoiseKind = Literal["gaussian", "ou"]
NOISES = ("gaussian", "ou")
OU_PULL = 0.15  # towards 0 per env step, Lillicrap et al., 2016


class ActionNoise:
    """Noise on actions in [-1, 1]; the process of each environment is its carry, so that a checkpoint has it.

    Args:
        kind: gaussian (independent at every step) or ou (Ornstein-Uhlenbeck: correlated in time).
        std: Standard deviation of each step's draw.
        action_dim: Numbers per action.
    """

    def __init__(self, kind: NoiseKind, std: float, action_dim: int) -> None:
        if kind not in NOISES:
            raise ConfigError(unknown_name("algorithm.noise", kind, NOISES))
        self.kind, self.std, self._dim = kind, std, action_dim

    def initial_carry(self, num_envs: int, device: torch.device) -> Carry:
        """Return the process at rest, or None when there is none."""
        return torch.zeros(num_envs, self._dim, device=device) if self.kind == "ou" else None

    def __call__(self, actions: Tensor, carry: Carry, is_first: Tensor) -> tuple[Tensor, Carry]:
        """Return noisy actions within [-1, 1] and the next carry; a new episode begins at rest."""
        draw = torch.randn_like(actions) * self.std
        if self.kind == "ou":
            carry = carry * ~is_first.unsqueeze(-1)
            draw = carry = carry - OU_PULL * carry + draw
        return (actions + draw).clamp(-1.0, 1.0), carry


def reject_long_warm_up(context: WorkflowContext, random_steps: int) -> None:
    """Raise when a run would act at random to its end."""
    training = context.config.get("training")
    if training is not None and random_steps >= training["total_timesteps"]:
        raise ConfigError(
            f"algorithm.random_steps: {random_steps} env steps of random actions are not less than "
            f"training.total_timesteps={training['total_timesteps']}"
        )
