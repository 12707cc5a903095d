"""Penalties of torques, speeds and positions of joints; `joints` are columns, in YAML names or patterns of them."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.core import ConfigError
from rl_lab.robots.mdp.state import RobotState


def torques(state: RobotState) -> Tensor:
    """Return the sum of tau^2."""
    return state.torques.square().sum(-1)


def torque_norms(state: RobotState) -> Tensor:
    """Return |tau|_2 + |tau|_1."""
    return state.torques.norm(dim=-1) + state.torques.abs().sum(-1)


def energy(state: RobotState) -> Tensor:
    """Return the sum of |qd| |tau|."""
    return (state.joint_vel.abs() * state.torques.abs()).sum(-1)


def dof_vel(state: RobotState) -> Tensor:
    """Return the sum of qd^2."""
    return state.joint_vel.square().sum(-1)


def dof_acc(state: RobotState) -> Tensor:
    """Return the sum of ((qd - qd of the step before) / dt)^2."""
    return ((state.joint_vel - state.last_joint_vel) / state.facts.dt).square().sum(-1)


def dof_pos_limits(state: RobotState) -> Tensor:
    """Return how far joints are beyond their soft limits, summed."""
    below, above = state.facts.low - state.joint_pos, state.joint_pos - state.facts.high
    return (below.clamp_min(0.0) + above.clamp_min(0.0)).sum(-1)


def dof_vel_limits(state: RobotState, share: float = 1.0) -> Tensor:
    """Return how far joints are faster than `share` of their limit, at most 1 each, summed."""
    return (state.joint_vel.abs() - share * state.facts.max_speed).clamp(0.0, 1.0).sum(-1)


def torque_limits(state: RobotState, share: float = 1.0) -> Tensor:
    """Return how far torques are beyond `share` of their limit, summed."""
    return (state.torques.abs() - share * state.facts.effort).clamp_min(0.0).sum(-1)


def joint_deviation(state: RobotState, joints: Tensor) -> Tensor:
    """Return the sum of |q - q0| of these joints."""
    return (state.joint_pos - state.facts.default_pos)[:, joints].abs().sum(-1)


def joint_deviation_squared(state: RobotState, joints: Tensor) -> Tensor:
    """Return the sum of (q - q0)^2 of these joints."""
    return (state.joint_pos - state.facts.default_pos)[:, joints].square().sum(-1)


def pose(state: RobotState, joints: Tensor, standing: float | Tensor = 0.1, walking: float | Tensor = 0.4) -> Tensor:
    """Return exp(-mean((q - q0)^2 / std^2)); the std, one or one per joint, is `standing` for commands below 0.1."""
    for name, std in (("standing", standing), ("walking", walking)):
        if isinstance(std, Tensor) and len(std) != len(joints):
            raise ConfigError(f"pose: {name} has {len(std)} numbers, but there are {len(joints)} joints")
    error = (state.joint_pos - state.facts.default_pos)[:, joints]
    is_standing = state.command.norm(dim=-1, keepdim=True) < 0.1
    return torch.exp(-torch.where(is_standing, error / standing, error / walking).square().mean(-1))


def pose_distance(state: RobotState, standing: float = 5.0, speed: float = 0.3) -> Tensor:
    """Return |q - q0|, `standing` times that where no motion is commanded and the base is slower than `speed`."""
    distance = (state.joint_pos - state.facts.default_pos).norm(dim=-1)
    moves = (state.command.norm(dim=-1) > 0.0) | (state.lin_vel[:, :2].norm(dim=-1) > speed)
    return torch.where(moves, distance, standing * distance)


def stand_still(state: RobotState, threshold: float = 0.1) -> Tensor:
    """Return the sum of |q - q0| where no velocity above `threshold` is commanded (yaw included)."""
    error = (state.joint_pos - state.facts.default_pos).abs().sum(-1)
    return error * (state.command.norm(dim=-1) < threshold)


def default_joint_pos(state: RobotState, joints: Tensor, free: float = 0.1) -> Tensor:
    """Return exp(-100 clip(|q - q0| of these joints - `free`, 0, 50)) - 0.01 |q - q0| of all."""
    error = state.joint_pos - state.facts.default_pos
    beyond = (error[:, joints].norm(dim=-1) - free).clamp(0.0, 50.0)
    return torch.exp(-100.0 * beyond) - 0.01 * error.norm(dim=-1)
