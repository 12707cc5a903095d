"""CartPole-v1 as one batched tensor program (Barto, Sutton and Anderson 1983; constants of gymnasium)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_lab.core import Box, Discrete, EnvSpec
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

GRAVITY = 9.8  # m/s^2
POLE_MASS = 0.1  # kg
TOTAL_MASS = 1.1  # kg, cart and pole
HALF_LENGTH = 0.5  # m
FORCE = 10.0  # N
SECONDS = 0.02  # per step, explicit Euler
MAX_X = 2.4  # m
MAX_ANGLE = 12 * math.pi / 180  # rad
POLE_MOMENT = POLE_MASS * HALF_LENGTH


class CartPole(TensorEnv):
    """Balance a pole on a cart: state [x, dx, angle, dangle], two actions (push left, push right), reward 1 a step.

    Args:
        num_envs: Copies that step together.
        max_episode_steps: Env steps after which an episode is cut.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(self, num_envs: int, *, max_episode_steps: int = 500, device: torch.device | str = "cpu") -> None:
        spec = EnvSpec("tensor/CartPole", Box((4,)), Discrete(2), max_episode_steps)
        super().__init__(spec, num_envs, device)
        self._forces = torch.tensor([-FORCE, FORCE], device=self.device)
        self._rewards = torch.ones(num_envs, device=self.device)

    def _initial(self) -> Dynamics:
        return {"physics": self._uniform(4, low=-0.05, high=0.05)}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        physics = state["physics"]
        _, dx, angle, dangle = physics.unbind(-1)
        sin, cos = angle.sin(), angle.cos()
        push = (self._forces[actions] + POLE_MOMENT * dangle.square() * sin) / TOTAL_MASS
        lever = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos.square() / TOTAL_MASS)
        angle_acceleration = (GRAVITY * sin - cos * push) / lever
        acceleration = push - POLE_MOMENT * angle_acceleration * cos / TOTAL_MASS
        physics = physics + SECONDS * torch.stack((dx, acceleration, dangle, angle_acceleration), dim=-1)
        terminated = (physics[:, 0].abs() > MAX_X) | (physics[:, 2].abs() > MAX_ANGLE)
        return {"physics": physics}, self._rewards.clone(), terminated

    def _observe(self, state: Dynamics) -> Tensor:
        return state["physics"].clone()
