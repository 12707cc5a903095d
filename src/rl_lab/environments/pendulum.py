"""Pendulum-v1 as one batched tensor program (constants of gymnasium)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_lab.core import Box, EnvSpec, Mirror
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

GRAVITY = 10.0  # m/s^2; mass 1 kg, length 1 m
MAX_SPEED = 8.0  # rad/s
MAX_TORQUE = 2.0  # N m
SECONDS = 0.05  # per step, semi-implicit Euler
MIRROR = Mirror({"": [(0, 1.0), (1, -1.0), (2, -1.0)]}, [(0, -1.0)])  # left is as good as right


class Pendulum(TensorEnv):
    """Swing a pendulum up and hold it: sees [cos, sin, speed], acts by a torque in [-2, 2], pays for angle and effort.

    The angle is kept within [-pi, pi), so that float32 stays exact over long episodes.

    Args:
        num_envs: Copies that step together.
        max_episode_steps: Env steps after which an episode is cut.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(self, num_envs: int, *, max_episode_steps: int = 200, device: torch.device | str = "cpu") -> None:
        torque = Box((1,), low=-MAX_TORQUE, high=MAX_TORQUE)
        spec = EnvSpec("tensor/Pendulum", Box((3,)), torque, max_episode_steps, mirror=MIRROR)
        super().__init__(spec, num_envs, device)

    def _initial(self) -> Dynamics:
        draw = self._uniform(2, low=-1.0, high=1.0)
        return {"angle": draw[:, 0] * math.pi, "speed": draw[:, 1]}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        angle, speed = state["angle"], state["speed"]
        torque = actions[:, 0].clamp(-MAX_TORQUE, MAX_TORQUE)
        costs = angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = speed + (1.5 * GRAVITY * angle.sin() + 3.0 * torque) * SECONDS
        speed = speed.clamp(-MAX_SPEED, MAX_SPEED)
        angle = (angle + speed * SECONDS + math.pi) % (2 * math.pi) - math.pi
        return {"angle": angle, "speed": speed}, -costs, torch.zeros_like(angle, dtype=torch.bool)

    def _observe(self, state: Dynamics) -> Tensor:
        angle, speed = state["angle"], state["speed"]
        return torch.stack((angle.cos(), angle.sin(), speed), dim=-1)
