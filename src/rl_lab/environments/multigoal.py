"""MultiGoal (Haarnoja et al., 2017): a point and four goals, where a good policy has several modes."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.core import Box, EnvSpec
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

GOALS = ((5.0, 0.0), (-5.0, 0.0), (0.0, 5.0), (0.0, -5.0))
BOUND = 7.0  # the world is a square of twice this side
START_STD = 0.1
ACTION_COST = 30.0  # per squared speed
DISTANCE_COST = 1.0  # per squared distance to the nearest goal
GOAL_RADIUS = 1.0
GOAL_REWARD = 10.0


class MultiGoal(TensorEnv):
    """Moves by a velocity in [-1, 1] per dimension, without noise, and sees its position; at a goal the episode ends.

    The reward is 10 on arrival, less 30 times the squared speed and the squared distance to the nearest goal.

    Args:
        num_envs: Copies that step together.
        max_episode_steps: Env steps after which an episode is cut.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(self, num_envs: int, *, max_episode_steps: int = 30, device: torch.device | str = "cpu") -> None:
        position, velocity = Box((2,), low=-BOUND, high=BOUND), Box((2,), low=-1.0, high=1.0)
        super().__init__(EnvSpec("tensor/MultiGoal", position, velocity, max_episode_steps), num_envs, device)
        self._goals = torch.tensor(GOALS, device=self.device)  # [4, 2]

    def _initial(self) -> Dynamics:
        draw = torch.randn(self.num_envs, 2, generator=self._generator, device=self.device)
        return {"position": (START_STD * draw).clamp(-BOUND, BOUND)}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        velocity = actions.clamp(-1.0, 1.0)
        position = (state["position"] + velocity).clamp(-BOUND, BOUND)
        squared_distance = (position.unsqueeze(1) - self._goals).square().sum(-1).amin(-1)
        is_there = squared_distance < GOAL_RADIUS**2
        costs = ACTION_COST * velocity.square().sum(-1) + DISTANCE_COST * squared_distance
        return {"position": position}, GOAL_REWARD * is_there - costs, is_there

    def _observe(self, state: Dynamics) -> Tensor:
        return state["position"].clone()
