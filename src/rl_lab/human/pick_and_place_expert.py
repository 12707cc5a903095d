"""The scripted expert of two arms that put objects into a box (`cell/PickAndPlace-v0`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_lab.human.cell import arm
from rl_lab.human.experts import ScriptedExpert

DECIMETRES = 10.0  # in a metre
SIDES = len(arm.SIDES)


class PickAndPlaceExpert(ScriptedExpert):
    """Each arm goes over its object, down, grips, lifts, goes over its half of the box, lowers, lets go and goes home.

    The hand points down all the time and its fingers move along y.

    Args:
        noise: Standard deviation of what is added to actions while exploring; actions are in [-1, 1].
    """

    num_actions, num_observations, done_at = 14, 20, 0.05

    SPOT = 0.045  # metres of an arm's place in the box to its side of the middle
    HOVER, CARRY, DROP = 0.12, 0.15, 0.075  # heights of the tool, metres
    NEAR, OVER, AWAY = 0.010, 0.02, 0.035  # metres to the side: above an object, above its place, too far to be low
    HELD, GRIPPED = 0.025, 0.66  # an object so near (metres) between fingers so far closed is held
    SLACK = 0.03  # metres that a hand may be too low to move aside
    STRIDE = 0.06  # metres per step
    low: Tensor
    high: Tensor
    bases: Tensor
    spots: Tensor
    box: Tensor
    home: Tensor

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__(noise)
        constants = {
            **{"low": arm.LOW, "high": arm.HIGH, "home": arm.HOME, "box": arm.BIN},
            "bases": [arm.BASES[side] for side in arm.SIDES],
            "spots": [(arm.BIN[0] - self.SPOT, arm.BIN[1]), (arm.BIN[0] + self.SPOT, arm.BIN[1])],
        }
        for name, numbers in constants.items():
            self.register_buffer(name, torch.tensor(numbers), persistent=False)

    def plan(self, obs: Tensor) -> Tensor:
        """Return where all joints shall go."""
        joints, objects = self._split(obs)
        tool, opening = self.tool(joints), joints[..., 6]
        goal, grip = self._goal(tool, objects, opening)
        way = goal - tool
        stride = (self.STRIDE / way.norm(dim=-1, keepdim=True).clamp(min=1e-6)).clamp(max=1.0)
        angles = self.angles(tool + stride * way)
        command = torch.cat([angles, grip.unsqueeze(-1)], dim=-1)
        middle, half = (self.high + self.low) / 2.0, (self.high - self.low) / 2.0
        return ((command - middle) / half).clamp(-1.0, 1.0).flatten(1)

    def remaining(self, obs: Tensor) -> Tensor:
        """Return decimetres that hands and objects still have to go."""
        joints, objects = self._split(obs)
        tool = self.tool(joints)
        is_held = self._is_held(tool, objects, joints[..., 6])
        to_object = torch.where(is_held, 0.0, (tool - objects).norm(dim=-1) + 0.05)
        to_place = (objects[..., :2] - self.spots).norm(dim=-1)
        left = torch.where(self._is_placed(objects) & ~is_held, 0.0, to_object + to_place)
        return DECIMETRES * left.sum(-1)

    def tool(self, joints: Tensor) -> Tensor:
        """Return where the point between the fingers is, [N, 2, 3] metres, for hands that do not roll sideways."""
        yaw, shoulder, elbow, _, wrist = joints[..., :5].unbind(-1)
        forearm, hand = shoulder + elbow, shoulder + elbow + wrist
        out = arm.UPPER * shoulder.sin() + arm.FOREARM * forearm.cos() + arm.TOOL * hand.cos()
        up = arm.SHOULDER + arm.UPPER * shoulder.cos() - arm.FOREARM * forearm.sin() - arm.TOOL * hand.sin()
        return torch.stack([self.bases[:, 0] - out * yaw.sin(), self.bases[:, 1] + out * yaw.cos(), up], dim=-1)

    def angles(self, tool: Tensor) -> Tensor:
        """Return the joints [N, 2, 6] that bring the tool there with the hand pointing down."""
        x, y = (tool[..., :2] - self.bases).unbind(-1)
        yaw, out = torch.atan2(-x, y), torch.hypot(x, y)
        up = tool[..., 2] + arm.TOOL - arm.SHOULDER  # of the wrist over the shoulder
        longest = arm.UPPER + arm.FOREARM - 1e-3
        reach = torch.hypot(out, up).clamp(0.1, longest)
        at_elbow = _corner(arm.UPPER, arm.FOREARM, reach)
        at_shoulder = _corner(arm.UPPER, reach, torch.full_like(reach, arm.FOREARM))
        shoulder = math.pi / 2 - torch.atan2(up, out) - at_shoulder
        elbow = math.pi / 2 - at_elbow
        wrist = math.pi / 2 - shoulder - elbow
        return torch.stack([yaw, shoulder, elbow, torch.zeros_like(yaw), wrist, yaw + math.pi / 2], dim=-1)

    def _split(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return joints and grippers [N, 2, 7] and objects [N, 2, 3] in metres."""
        return obs[:, :14].unflatten(-1, (SIDES, 7)), obs[:, 14:].unflatten(-1, (SIDES, 3)) / DECIMETRES

    def _is_held(self, tool: Tensor, objects: Tensor, opening: Tensor) -> Tensor:
        return ((tool - objects).norm(dim=-1) < self.HELD) & (opening < self.GRIPPED)

    def _is_placed(self, objects: Tensor) -> Tensor:
        inside = (objects[..., :2] - self.box).abs().amax(-1) < arm.BIN_HALF - 0.005
        return inside & (objects[..., 2] < 0.12)

    def _goal(self, tool: Tensor, objects: Tensor, opening: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the tools shall go [N, 2, 3] and how far open the grippers shall be [N, 2]."""
        is_held = self._is_held(tool, objects, opening)
        leaves = self._is_placed(objects) & ~is_held
        fetch, closes = self._fetch(tool, objects)
        bring, lets_go = self._bring(tool)
        goal = torch.where(is_held.unsqueeze(-1), bring, fetch)
        goal = torch.where(leaves.unsqueeze(-1), self._leave(tool), goal)
        is_closed = torch.where(is_held, ~lets_go, closes) & ~leaves
        return goal, 1.0 - is_closed.float()

    def _fetch(self, tool: Tensor, objects: Tensor) -> tuple[Tensor, Tensor]:
        """Return the way to an object, over it and then down, and whether the hand is there to close."""
        aside, height = (tool[..., :2] - objects[..., :2]).norm(dim=-1), tool[..., 2]
        is_near = aside < self.NEAR
        stays = (aside > self.AWAY) & (height < self.HOVER - self.SLACK)
        place = torch.where(stays.unsqueeze(-1), tool[..., :2], objects[..., :2])
        goal_height = torch.where(is_near, objects[..., 2], self.HOVER)
        is_there = is_near & (height < objects[..., 2] + 0.006)
        return torch.cat([place, goal_height.unsqueeze(-1)], dim=-1), is_there

    def _bring(self, tool: Tensor) -> tuple[Tensor, Tensor]:
        """Return the way of an object into the box, up, over its place and then down, and whether to let go of it."""
        is_over, height = (tool[..., :2] - self.spots).norm(dim=-1) < self.OVER, tool[..., 2]
        stays = ~is_over & (height < self.CARRY - self.SLACK)
        place = torch.where(stays.unsqueeze(-1), tool[..., :2], self.spots.expand_as(tool[..., :2]))
        goal_height = torch.where(is_over, self.DROP, self.CARRY)
        return torch.cat([place, goal_height.unsqueeze(-1)], dim=-1), is_over & (height < self.DROP + 0.012)

    def _leave(self, tool: Tensor) -> Tensor:
        """Return the way home: first up."""
        home = self.tool(self.home.expand(*tool.shape[:-1], len(arm.HOME)))
        place = torch.where((tool[..., 2:] < self.HOVER - self.SLACK), tool, home)
        return torch.cat([place[..., :2], place[..., 2:].clamp(min=self.HOVER)], dim=-1)


def _corner(one: float, other: Tensor | float, opposite: Tensor) -> Tensor:
    """Return the angle between two sides of a triangle."""
    cosine = (one**2 + other**2 - opposite**2) / (2.0 * one * other)
    return torch.acos(cosine.clamp(-1.0, 1.0))
