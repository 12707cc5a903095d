"""Unit quaternions (w, x, y, z) that turn a body's axes into the world's, as batched tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotate(quat: Tensor, vector: Tensor) -> Tensor:
    """Return vectors [..., 3] of the body in the world."""
    w, xyz = quat[..., :1], quat[..., 1:]
    t = 2.0 * torch.linalg.cross(xyz, vector)
    return vector + w * t + torch.linalg.cross(xyz, t)


def rotate_inverse(quat: Tensor, vector: Tensor) -> Tensor:
    """Return vectors [..., 3] of the world in the body."""
    w, xyz = quat[..., :1], quat[..., 1:]
    t = 2.0 * torch.linalg.cross(xyz, vector)
    return vector - w * t + torch.linalg.cross(xyz, t)


def projected_gravity(quat: Tensor) -> Tensor:
    """Return the direction of gravity in the body, [..., 3]: (0, 0, -1) when upright."""
    w, x, y, z = quat.unbind(-1)
    return -torch.stack((2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)), -1)


def yaw_of(quat: Tensor) -> Tensor:
    """Return the heading of the body's x axis in the world's plane, in (-pi, pi]."""
    w, x, y, z = quat.unbind(-1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def euler_xyz(quat: Tensor) -> Tensor:
    """Return roll, pitch and yaw, [..., 3]."""
    w, x, y, z = quat.unbind(-1)
    roll = torch.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    pitch = torch.asin((2.0 * (w * y - z * x)).clamp(-1.0, 1.0))
    return torch.stack((roll, pitch, yaw_of(quat)), -1)


def quat_of_yaw(yaw: Tensor) -> Tensor:
    """Return the quaternion of a turn about the vertical, [..., 4]."""
    zero = torch.zeros_like(yaw)
    return torch.stack((torch.cos(yaw / 2.0), zero, zero, torch.sin(yaw / 2.0)), -1)


def quat_of_euler(euler: Tensor) -> Tensor:
    """Return the quaternion of roll, pitch and yaw [..., 3], turned in this order about fixed axes."""
    (sr, sp, sy), (cr, cp, cy) = (f(euler / 2.0).unbind(-1) for f in (torch.sin, torch.cos))
    parts = (
        cr * cp * cy + sr * sp * sy,
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
    )
    return torch.stack(parts, -1)


def wrap(angle: Tensor) -> Tensor:
    """Return the same angle in [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
