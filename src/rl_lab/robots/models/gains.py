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


def gain_parameters(
    model: mujoco.MjModel, kp: Tensor, kd: Tensor, own: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return (actuator_gainprm, actuator_biasprm) [N, U, 10] of scene actuators with those gains, [N, U] each.

    A velocity actuator has no kp and a torque actuator neither: those numbers are not used. `own` are both fields of
    the model on the device of the gains; without them they are copied there.
    """
    import mujoco

    gain, bias = own or [torch.as_tensor(getattr(model, name), dtype=torch.float32).to(kp) for name in GAIN_FIELDS]
    gain, bias = gain.repeat(len(kp), 1, 1), bias.repeat(len(kp), 1, 1)
    for i in range(model.nu):
        if model.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_DCMOTOR:
            gain[:, i, SERVO_KP], gain[:, i, SERVO_KD] = kp[:, i], kd[:, i]
        elif model.actuator_biasprm[i, 1] != 0:  # position: kp (target - q) - kd qd
            gain[:, i, 0], bias[:, i, 1], bias[:, i, 2] = kp[:, i], -kp[:, i], -kd[:, i]
        elif model.actuator_biasprm[i, 2] != 0:  # velocity: kd (target - qd)
            gain[:, i, 0], bias[:, i, 2] = kd[:, i], -kd[:, i]
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
