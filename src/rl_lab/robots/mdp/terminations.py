"""When an episode ends, [N] bool each. A term with `time_out: true` in YAML cuts the episode instead."""

from __future__ import annotations

import math

from torch import Tensor

from rl_lab.robots.mdp.state import RobotState


def tilted(state: RobotState, limit: float = math.radians(70.0)) -> Tensor:
    """End where the base is tilted by more than `limit` rad."""
    return -state.gravity[:, 2] < math.cos(limit)


def fallen(state: RobotState, height: float) -> Tensor:
    """End where the base is lower than `height` above the ground."""
    return state.base_pos[:, 2] - state.ground < height


def touched(state: RobotState, bodies: Tensor, threshold: float = 1.0) -> Tensor:
    """End where one of these bodies touches something with more than `threshold` newtons."""
    return (state.touch[:, bodies] > threshold).any(-1)


def too_fast(state: RobotState, limit: float = 20.0) -> Tensor:
    """End where the base moves faster than `limit` m/s: the simulation has come apart."""
    return state.lin_vel.norm(dim=-1) > limit
