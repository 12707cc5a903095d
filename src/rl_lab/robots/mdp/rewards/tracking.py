"""Rewards for moving as commanded; errors are of the base's own frame unless a name says otherwise."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.robots.mdp.rotations import rotate, yaw_of
from rl_lab.robots.mdp.state import RobotState


def _lin_error(state: RobotState) -> Tensor:
    return (state.command[:, :2] - state.lin_vel[:, :2]).square().sum(-1)


def track_lin_vel(state: RobotState, sigma: float = 0.25, vertical: bool = False) -> Tensor:
    """Return exp(-|c_xy - v_xy|^2 / sigma); with `vertical`, v_z counts as an error as well."""
    error = _lin_error(state)
    return torch.exp(-(error + state.lin_vel[:, 2].square() if vertical else error) / sigma)


def track_ang_vel(state: RobotState, sigma: float = 0.25, tilting: bool = False) -> Tensor:
    """Return exp(-(c_w - w_z)^2 / sigma); with `tilting`, w_x and w_y count as errors as well."""
    error = (state.command[:, 2] - state.ang_vel[:, 2]).square()
    return torch.exp(-(error + state.ang_vel[:, :2].square().sum(-1) if tilting else error) / sigma)


def track_lin_vel_yaw(state: RobotState, sigma: float = 0.25) -> Tensor:
    """Return exp(-|c_xy - v_xy|^2 / sigma) in the frame that only turns with the base's heading."""
    yaw, velocity = yaw_of(state.base_quat), state.world_vel
    cos, sin = torch.cos(yaw), torch.sin(yaw)
    ahead = cos * velocity[:, 0] + sin * velocity[:, 1]
    left = cos * velocity[:, 1] - sin * velocity[:, 0]
    error = (state.command[:, 0] - ahead).square() + (state.command[:, 1] - left).square()
    return torch.exp(-error / sigma)


def track_ang_vel_world(state: RobotState, sigma: float = 0.25) -> Tensor:
    """Return exp(-(c_w - w_z)^2 / sigma) with the yaw rate about the world's vertical."""
    rate = rotate(state.base_quat, state.ang_vel)[:, 2]
    return torch.exp(-(state.command[:, 2] - rate).square() / sigma)


def track_forward_vel(state: RobotState, sigma: float = 0.25) -> Tensor:
    """Return exp(-((c_x - v_x)^2 + v_y^2 + v_z^2) / sigma): for robots that cannot move sideways."""
    error = (state.command[:, 0] - state.lin_vel[:, 0]).square() + state.lin_vel[:, 1:].square().sum(-1)
    return torch.exp(-error / sigma)


def track_vel_hard(state: RobotState) -> Tensor:
    """Return (exp(-10 |e_v|) + exp(-10 |e_w|)) / 2 - 0.2 (|e_v| + |e_w|), which still pulls from far away."""
    linear = _lin_error(state).sqrt()
    angular = (state.command[:, 2] - state.ang_vel[:, 2]).abs()
    return (torch.exp(-10.0 * linear) + torch.exp(-10.0 * angular)) / 2.0 - 0.2 * (linear + angular)


def low_speed(state: RobotState, slow: float = 0.5, fast: float = 1.2, bonus: float = 2.0) -> Tensor:
    """Return -1 below `slow` of c_x, 0 above `fast`, `bonus` between, -2 the wrong way; 0 where |c_x| <= 0.1."""
    speed, wanted = state.lin_vel[:, 0].abs(), state.command[:, 0].abs()
    value = torch.where(speed < slow * wanted, -1.0, torch.where(speed > fast * wanted, 0.0, bonus))
    is_wrong_way = torch.sign(state.lin_vel[:, 0]) != torch.sign(state.command[:, 0])
    return torch.where(is_wrong_way, -2.0, value) * (wanted > 0.1)
