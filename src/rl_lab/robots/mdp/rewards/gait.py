"""Rewards for following the reference gait."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.robots.mdp.gaits import reference_pose, should_stand, swing_curve
from rl_lab.robots.mdp.state import RobotState


def gait_contact(state: RobotState) -> Tensor:
    """Return how many feet touch the ground exactly when they should, where a motion is commanded."""
    is_right = state.contact == should_stand(state)
    return is_right.float().sum(-1) * (state.command.norm(dim=-1) > 0.1)


def feet_contact_number(state: RobotState, miss: float = -0.3) -> Tensor:
    """Return the mean over feet of 1 where contact is as it should be, else `miss`."""
    return torch.where(state.contact == should_stand(state), 1.0, miss).mean(-1)


def feet_swing_clearance(state: RobotState, target: float = 0.1, sigma: float = 0.01) -> Tensor:
    """Return the mean over feet of exp(-(z - target * swing curve)^2 / sigma^2): 1 on the curve. A reward."""
    error = state.foot_height - target * swing_curve(state)
    return torch.exp(-(error / sigma).square()).mean(-1)


def feet_clearance_band(state: RobotState, target: float = 0.06, width: float = 0.01) -> Tensor:
    """Return how many feet that should swing are as high as `target`, give or take `width`. A reward."""
    return (((state.foot_height - target).abs() < width) & ~should_stand(state)).sum(-1).float()


def feet_phase(state: RobotState, target: float = 0.1, sigma: float = 0.01) -> Tensor:
    """Return exp(-sum (z - target * swing curve)^2 / sigma)."""
    return torch.exp(-(state.foot_height - target * swing_curve(state)).square().sum(-1) / sigma)


def dof_ref_pos_diff(state: RobotState) -> Tensor:
    """Return exp(-2 |d|) - 0.2 min(|d|, 0.5), d the difference to the reference pose."""
    distance = (state.joint_pos - reference_pose(state)).norm(dim=-1)
    return torch.exp(-2.0 * distance) - 0.2 * distance.clamp(0.0, 0.5)
