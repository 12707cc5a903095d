"""Reference gaits: when a foot swings, how high, and where its leg's joints are; the same curve for every leg."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_lab.robots.mdp.state import RobotState


def foot_phase(state: RobotState) -> Tensor:
    """Return each foot's own phase in [0, 1), [N, F]."""
    return torch.remainder(state.phase.unsqueeze(-1) + state.gait.offsets, 1.0)


def should_stand(state: RobotState) -> Tensor:
    """Return which feet are to be on the ground, [N, F] bool."""
    return foot_phase(state) < state.gait.stance


def swing_curve(state: RobotState) -> Tensor:
    """Return how far each foot is into its swing, [N, F]: a half sine over the swing, 0 in stance."""
    share = (foot_phase(state) - state.gait.stance) / (1.0 - state.gait.stance)
    return torch.sin(math.pi * share.clamp_min(0.0)).clamp_min(0.0)


def stance_curve(state: RobotState) -> Tensor:
    """Return how far each foot is into its stance, [N, F]: a half sine over the stance, 0 in swing."""
    share = foot_phase(state) / state.gait.stance
    return torch.sin(math.pi * share.clamp_max(1.0)).clamp_min(0.0)


def reference_pose(state: RobotState) -> Tensor:
    """Return joint positions [N, J]: the default pose, and in a leg that swings the gait's amplitudes on top."""
    pose = state.facts.default_pos.expand_as(state.joint_pos).clone()
    moved = swing_curve(state).unsqueeze(-1) * state.gait.amplitudes  # [N, F, K]
    return pose.index_add_(1, state.gait.legs.flatten(), moved.flatten(1))
