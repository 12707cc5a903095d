"""Rewards and penalties of how the base moves and stands, and of what else than feet touches."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.robots.mdp.gaits import should_stand
from rl_lab.robots.mdp.rotations import euler_xyz, quat_of_yaw, rotate, rotate_inverse, yaw_of
from rl_lab.robots.mdp.state import RobotState


def lin_vel_z(state: RobotState) -> Tensor:
    """Return v_z^2."""
    return state.lin_vel[:, 2].square()


def ang_vel_xy(state: RobotState) -> Tensor:
    """Return w_x^2 + w_y^2."""
    return state.ang_vel[:, :2].square().sum(-1)


def orientation(state: RobotState) -> Tensor:
    """Return g_x^2 + g_y^2 of the projected gravity: 0 when level."""
    return state.gravity[:, :2].square().sum(-1)


def leaning(state: RobotState, ahead: float = 0.073, left: float = 0.0) -> Tensor:
    """Return |z - (ahead, left, 1)|^2, z the base's own in the frame of its heading: 0 when it leans so. A penalty."""
    up = torch.zeros_like(state.base_pos)
    up[:, 2] = 1.0
    axis = rotate_inverse(quat_of_yaw(yaw_of(state.base_quat)), rotate(state.base_quat, up))
    return (axis[:, 0] - ahead).square() + (axis[:, 1] - left).square() + (axis[:, 2] - 1.0).square()


def upright(state: RobotState, sigma: float = 0.2) -> Tensor:
    """Return exp(-|g_xy|^2 / sigma): 1 when level."""
    return torch.exp(-orientation(state) / sigma)


def level(state: RobotState) -> Tensor:
    """Return (exp(-10 (|roll| + |pitch|)) + exp(-20 |g_xy|)) / 2, the humanoid's sharper `upright`."""
    tilt = euler_xyz(state.base_quat)[:, :2].abs().sum(-1)
    return (torch.exp(-10.0 * tilt) + torch.exp(-20.0 * orientation(state).sqrt())) / 2.0


def base_height(state: RobotState, target: float | None = None) -> Tensor:
    """Return (h - h*)^2 with h above the ground; h* is the robot's own standing height unless given."""
    return (_height(state) - (state.facts.base_height if target is None else target)).square()


def base_height_exp(state: RobotState, target: float | None = None, sole: float = 0.0) -> Tensor:
    """Return exp(-100 |h - h*|), h above the feet that should stand and the `sole` below them."""
    stands = should_stand(state).float()
    feet = (state.foot_pos[:, :, 2] * stands).sum(-1) / stands.sum(-1).clamp_min(1.0)
    height = state.base_pos[:, 2] - (feet - sole)
    return torch.exp(-100.0 * (height - (state.facts.base_height if target is None else target)).abs())


def _height(state: RobotState) -> Tensor:
    return state.base_pos[:, 2] - state.ground


def base_acc(state: RobotState) -> Tensor:
    """Return exp(-3 |change of the base's six velocities in this step|)."""
    return torch.exp(-3.0 * (state.last_world_vel - state.world_vel).norm(dim=-1))


def vel_mismatch(state: RobotState) -> Tensor:
    """Return (exp(-10 v_z^2) + exp(-5 |w_xy|)) / 2."""
    return (torch.exp(-10.0 * lin_vel_z(state)) + torch.exp(-5.0 * ang_vel_xy(state).sqrt())) / 2.0


def alive(state: RobotState) -> Tensor:
    """Return 1 in every step that does not end the task."""
    return (~state.terminated).float()


def termination(state: RobotState) -> Tensor:
    """Return 1 where the task ended, not where time ran out."""
    return state.terminated.float()


def collision(state: RobotState, bodies: Tensor, threshold: float = 0.1) -> Tensor:
    """Return how many of these bodies touch something with more than `threshold` newtons."""
    return (state.touch[:, bodies] > threshold).sum(-1).float()


def angular_momentum(state: RobotState) -> Tensor:
    """Return |L|^2 of the whole robot about its centre of mass: arms that swing against legs lower it. A penalty."""
    return state.angular_momentum.square().sum(-1)


def self_collision(state: RobotState, threshold: float = 10.0) -> Tensor:
    """Return after how many physics steps the robot touched itself with more than `threshold` newtons. A penalty."""
    return (state.self_force > threshold).sum(-1).float()
