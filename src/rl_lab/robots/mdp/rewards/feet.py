"""Rewards and penalties of when, where and how hard feet touch the ground."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.robots.mdp.state import RobotState


def _is_commanded(state: RobotState, threshold: float = 0.1) -> Tensor:
    return (state.command.norm(dim=-1) > threshold).float()


def feet_air_time(state: RobotState, target: float = 0.5) -> Tensor:
    """Return the sum of (flight - `target`) seconds over feet that land, where a motion is commanded."""
    gained = ((state.flight_time - target) * state.first_contact).sum(-1)
    return gained * _is_commanded(state)


def feet_air_time_clipped(state: RobotState, longest: float = 0.5) -> Tensor:
    """Return the sum of flights, at most `longest` seconds each, over feet that land."""
    return (state.flight_time.clamp(0.0, longest) * state.first_contact).sum(-1)


def feet_air_time_above(state: RobotState, shortest: float = 0.2, longest: float = 0.5) -> Tensor:
    """Return the sum of (flight - `shortest`), flights of at most `longest`, over feet that land on command."""
    gained = (state.flight_time.clamp_max(longest) - shortest) * state.first_contact
    return gained.sum(-1) * _is_commanded(state)


def feet_air_time_biped(state: RobotState, longest: float = 0.4) -> Tensor:
    """Return how long both feet have been as they are, at most `longest`, while one is down and a motion commanded."""
    since = torch.where(state.contact, state.contact_time, state.air_time)
    is_single = state.contact.sum(-1) == 1
    return since.amin(-1).clamp_max(longest) * is_single * _is_commanded(state)


def air_time_variance(state: RobotState, longest: float = 0.5) -> Tensor:
    """Return the variance over feet of the last flights and of the last stances, each at most `longest`."""
    return state.flight_time.clamp_max(longest).var(-1) + state.stance_time.clamp_max(longest).var(-1)


def feet_slip(state: RobotState, exponent: float = 2.0) -> Tensor:
    """Return the sum of |v_xy|^exponent over feet in contact (2 quadruped, 1 Isaac Lab, 0.5 humanoid-gym)."""
    return (_speed(state).pow(exponent) * state.contact).sum(-1)


def _speed(state: RobotState) -> Tensor:
    return state.foot_vel[:, :, :2].square().sum(-1).clamp_min(1e-12).sqrt()


def feet_clearance(state: RobotState, target: float = 0.1, exponent: float = 1.0) -> Tensor:
    """Return the sum of |z - target| |v_xy|^exponent: a fast foot at the wrong height (0.5 Playground). A penalty."""
    return ((state.foot_height - target).abs() * _speed(state).pow(exponent)).sum(-1)


def feet_clearance_exp(state: RobotState, target: float = 0.1, sigma: float = 0.05) -> Tensor:
    """Return exp(-sum (z - target)^2 tanh(2 |v_xy|) / sigma): 1 where feet that move are as high. A reward."""
    error = (state.foot_height - target).square() * torch.tanh(2.0 * _speed(state))
    return torch.exp(-error.sum(-1) / sigma)


def swing_height(state: RobotState, target: float = 0.1) -> Tensor:
    """Return the sum of (peak / target - 1)^2 over feet that land, where a motion is commanded. A penalty."""
    error = (state.peak_height / target - 1.0).square() * state.first_contact
    return error.sum(-1) * _is_commanded(state)


def swing_height_error(state: RobotState, target: float = 0.08) -> Tensor:
    """Return the sum of (z - target)^2 over feet in the air. A penalty."""
    return ((state.foot_height - target).square() * ~state.contact).sum(-1)


def soft_landing(state: RobotState) -> Tensor:
    """Return the sum of |F| over feet that land."""
    return (state.foot_force.norm(dim=-1) * state.first_contact).sum(-1)


def feet_contact_forces(state: RobotState, limit: float = 500.0, most: float = 350.0) -> Tensor:
    """Return the sum of |F| beyond `limit`, at most `most` each."""
    return (state.foot_force.norm(dim=-1) - limit).clamp(0.0, most).sum(-1)


def feet_stumble(state: RobotState, ratio: float = 5.0) -> Tensor:
    """Return 1 where a foot's horizontal force exceeds `ratio` times its vertical one: it has hit a wall."""
    force = state.foot_force
    return (force[:, :, :2].norm(dim=-1) > ratio * force[:, :, 2].abs()).any(-1).float()


def single_contact(state: RobotState) -> Tensor:
    """Return 1 where exactly one foot touches the ground."""
    return (state.contact.sum(-1) == 1).float()


def fly(state: RobotState) -> Tensor:
    """Return 1 where no foot touches the ground."""
    return (~state.contact.any(-1)).float()


def feet_distance(state: RobotState, nearest: float = 0.15, farthest: float = 0.8) -> Tensor:
    """Return 1 while the first two feet are this far apart on the ground, less outside."""
    return _distance_reward(state.foot_pos[:, 0] - state.foot_pos[:, 1], nearest, farthest)


def body_distance(state: RobotState, pair: Tensor, nearest: float = 0.15, farthest: float = 0.4) -> Tensor:
    """Return the same for a pair of bodies, such as the shanks (knees)."""
    one, other = state.body_pos[:, pair].unbind(1)
    return _distance_reward(one - other, nearest, farthest)


def _distance_reward(between: Tensor, nearest: float, farthest: float) -> Tensor:
    distance = between[:, :2].norm(dim=-1)
    near, far = (distance - nearest).clamp(-0.5, 0.0), (distance - farthest).clamp(0.0, 0.5)
    return (torch.exp(-100.0 * near.abs()) + torch.exp(-100.0 * far.abs())) / 2.0
