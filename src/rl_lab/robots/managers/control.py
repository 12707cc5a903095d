"""From actions to what actuators are told: targets around the default pose, or velocities and torques as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.robots.managers.terms import check_keys, positive, whole
from rl_lab.robots.mdp.state import RobotFacts
from rl_lab.robots.models.layout import Layout
from rl_lab.robots.models.robot import Robot

SERVOS = ("position", "torque_speed")  # actuators that go to a target


class ControlManager:
    """Scales actions; `robot` is the one that was given with the joints changed as the config says."""

    def __init__(self, config: Mapping[str, Any], robot: Robot) -> None:
        path = "environment.control"
        check_keys(path, config, ("substeps", "action_clip", "joints"))
        self.robot = robot.with_joints(config.get("joints") or {})
        self.substeps = whole(f"{path}.substeps", config.get("substeps", 4))  # of physics per action
        self.clip = positive(f"{path}.action_clip", config.get("action_clip", 10.0))

    def bind(self, facts: RobotFacts, layout: Layout) -> None:
        """Take the places of the actuators from a compiled model."""
        joints, device = self.robot.joints, facts.default_pos.device
        self._scale = torch.tensor([joint.action_scale for joint in joints], device=device)
        is_target = torch.tensor([joint.control in SERVOS for joint in joints], device=device)
        self._rest = torch.where(is_target, facts.default_pos, 0.0)
        self._believes = is_target.float()  # which controllers compare their encoder with the target
        self._actuators = torch.tensor(layout.actuator, device=device)

    def __call__(self, actions: Tensor, joint_offset: Tensor) -> Tensor:
        """Return controls [N, J] in the order of the actuators; encoders read `joint_offset` [N, J] rad too much."""
        targets = self._rest + self._scale * actions - self._believes * joint_offset
        controls = torch.empty_like(targets)
        controls[:, self._actuators] = targets
        return controls
