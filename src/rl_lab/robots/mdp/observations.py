"""What networks may see: functions of a state, [N, k] each. Noise, scale, clip, delay and history are the group's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.mdp import gaits
from rl_lab.robots.mdp.rotations import euler_xyz, rotate_inverse
from rl_lab.robots.mdp.state import RobotState


def base_z_pos(state: RobotState) -> Tensor:
    """Height of the base above the ground, [N, 1]."""
    return (state.base_pos[:, 2] - state.ground).unsqueeze(-1)


def base_lin_vel(state: RobotState) -> Tensor:
    """Linear velocity of the base in its own frame, [N, 3]."""
    return state.lin_vel


def base_ang_vel(state: RobotState) -> Tensor:
    """Angular velocity of the base in its own frame, [N, 3]."""
    return state.ang_vel


def projected_gravity(state: RobotState) -> Tensor:
    """Direction of gravity in the base's frame, [N, 3]."""
    return state.gravity


def base_euler(state: RobotState) -> Tensor:
    """Roll, pitch and yaw, [N, 3]."""
    return euler_xyz(state.base_quat)


def base_roll_pitch(state: RobotState) -> Tensor:
    """Roll and pitch, [N, 2]: what an IMU knows without a compass."""
    return euler_xyz(state.base_quat)[:, :2]


def base_quat(state: RobotState) -> Tensor:
    """Orientation of the base as a quaternion w, x, y, z, [N, 4]."""
    return state.base_quat


def joint_pos(state: RobotState, joints: Tensor | None = None) -> Tensor:
    """Joint positions as encoders read them, less the default pose, [N, J]; all joints unless told."""
    values = state.joint_pos + state.joint_offset - state.facts.default_pos
    return values if joints is None else values[:, joints]


def joint_pos_true(state: RobotState) -> Tensor:
    """Joint positions as they are, less the default pose, [N, J]; privileged."""
    return state.joint_pos - state.facts.default_pos


def absolute_joint_pos(state: RobotState) -> Tensor:
    """Joint positions as encoders read them, [N, J]."""
    return state.joint_pos + state.joint_offset


def joint_vel(state: RobotState, joints: Tensor | None = None) -> Tensor:
    """Joint velocities, [N, J]; all joints unless told."""
    values = state.joint_vel
    return values if joints is None else values[:, joints]


def actions(state: RobotState) -> Tensor:
    """The last action, [N, J]."""
    return state.actions


def torques(state: RobotState) -> Tensor:
    """Torques of the actuators, [N, J]; privileged."""
    return state.torques


def command(state: RobotState) -> Tensor:
    """The commanded vx, vy and yaw rate, [N, 3]."""
    return state.command


def gait_phase(state: RobotState) -> Tensor:
    """Sine and cosine of the gait's phase, [N, 2]."""
    angle = 2.0 * math.pi * state.phase
    return torch.stack((torch.sin(angle), torch.cos(angle)), -1)


def height_scan(state: RobotState, offset: float = 0.5) -> Tensor:
    """Base height less `offset` less the ground's height at every point of the scan, [N, P]."""
    if state.heights.shape[-1] == 0:
        raise ConfigError(
            "environment.terrain.scan: height_scan needs it, such as {length: 1.6, width: 1.0, spacing: 0.1}"
        )
    return state.base_pos[:, 2:3] - offset - state.heights


def foot_pos(state: RobotState) -> Tensor:
    """Feet in the base's frame, [N, 3 F]."""
    between = state.foot_pos - state.base_pos.unsqueeze(1)
    return rotate_inverse(state.base_quat.unsqueeze(1).expand(-1, between.shape[1], -1), between).flatten(1)


def foot_height(state: RobotState) -> Tensor:
    """Heights of the feet above the ground, [N, F]; privileged."""
    return state.foot_height


def foot_air_time(state: RobotState) -> Tensor:
    """Seconds since each foot left the ground, [N, F]; privileged."""
    return state.air_time


def foot_contact(state: RobotState) -> Tensor:
    """Which feet touch the ground, [N, F] of 0 and 1; privileged."""
    return state.contact.float()


def foot_forces(state: RobotState) -> Tensor:
    """Contact forces of the feet as sign(F) log(1 + |F|), [N, 3 F]; privileged."""
    force = state.foot_force.flatten(1)
    return torch.sign(force) * torch.log1p(force.abs())


def stance_curve(state: RobotState) -> Tensor:
    """How far each foot should be into its stance, [N, F]."""
    return gaits.stance_curve(state)


def swing_curve(state: RobotState) -> Tensor:
    """How far each foot should be into its swing, [N, F]."""
    return gaits.swing_curve(state)


def joint_ref_diff(state: RobotState) -> Tensor:
    """Joint positions less the reference gait's, [N, J]; privileged."""
    return state.joint_pos - gaits.reference_pose(state)


def push(state: RobotState) -> Tensor:
    """Velocity that the last push has added: linear in the world, angular in the base, [N, 6]; privileged."""
    return state.push


def randomized(state: RobotState, event: str) -> Tensor:
    """What an event of this name has drawn for each world, [N, k], 0 before its first draw; privileged."""
    if event not in state.randomized:
        raise ConfigError("environment.observations: " + unknown_name("event", event, state.randomized))
    return state.randomized[event].flatten(1)
