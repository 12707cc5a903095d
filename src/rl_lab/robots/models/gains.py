"""Gains as the model fields they are, so that each world can have its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_lab.core import ConfigError

if TYPE_CHECKING:
    import mujoco

GAIN_FIELDS = ("actuator_gainprm", "actuator_biasprm")  # declare both as randomized
SERVO_KP, SERVO_KD = 4, 6  # columns of a DC motor's gainprm


def gain_places(model: mujoco.MjModel) -> tuple[Tensor, Tensor]:
    """Return both fields of the model [2, U, 10], and with which sign kp and kd stand in them [2, 2, U, 10].

    A velocity actuator has no kp and a torque actuator neither: those numbers are not used.
    """
    import mujoco

    own = torch.stack([torch.as_tensor(getattr(model, name), dtype=torch.float32) for name in GAIN_FIELDS])
    signs = torch.zeros(2, *own.shape)  # [kp or kd, gain or bias, actuator, column]
    is_motor = torch.as_tensor(model.actuator_gaintype == int(mujoco.mjtGain.mjGAIN_DCMOTOR))
    is_position = ~is_motor & (own[1, :, 1] != 0)  # kp (target - q) - kd qd
    is_velocity = ~is_motor & ~is_position & (own[1, :, 2] != 0)  # kd (target - qd)
    signs[0, 0, :, SERVO_KP], signs[1, 0, :, SERVO_KD] = is_motor.float(), is_motor.float()
    signs[0, 0, :, 0], signs[1, 0, :, 0] = is_position.float(), is_velocity.float()
    signs[0, 1, :, 1], signs[1, 1, :, 2] = -is_position.float(), -(is_position | is_velocity).float()
    return own, signs


def gain_parameters(kp: Tensor, kd: Tensor, own: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Return (actuator_gainprm, actuator_biasprm) [N, U, 10] with those gains, [N, U] each, at their `gain_places`."""
    placed = kp[:, None, :, None] * signs[0] + kd[:, None, :, None] * signs[1]
    gain, bias = torch.where((signs != 0).any(0), placed, own).unbind(1)
    return gain, bias


def default_gains(model: mujoco.MjModel) -> tuple[Tensor, Tensor]:
    """Return (kp, kd) [U] of a scene's actuators; 0 where an actuator has none."""
    import mujoco

    gain, bias = torch.as_tensor(model.actuator_gainprm), torch.as_tensor(model.actuator_biasprm)
    if gain.shape[0] == 0:
        raise ConfigError("the model has no actuators")
    is_motor = torch.as_tensor(model.actuator_gaintype == int(mujoco.mjtGain.mjGAIN_DCMOTOR))
    kp = torch.where(is_motor, gain[:, SERVO_KP], -bias[:, 1])
    kd = torch.where(is_motor, gain[:, SERVO_KD], -bias[:, 2])
    return kp.float(), kd.float()
