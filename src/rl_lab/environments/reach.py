"""Reach a goal that is different in every episode: the smallest task that needs hindsight (Andrychowicz et al., 2017).

Observations and rewards are shaped like those of the Fetch tasks (Plappert et al., 2018), without a simulator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.core import Actions, Box, ConfigError, EnvSpec, Observation, Step
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

BOUND = 1.0  # the world is a square or a cube of twice this side
REACHED, MISSED = 0.0, -1.0  # rewards


class Reach(TensorEnv):
    """Moves a point by a velocity in [-1, 1] per dimension; the reward is 0 at the goal and -1 elsewhere.

    Start and goal are uniform in [-1, 1]. Observes a dict: `observation` and `achieved_goal` are the position,
    `desired_goal` is the goal. An episode is never terminated, only cut; the info `is_success` tells of every step
    whether it led to the goal. With the defaults, random actions touch it in 1 of 400 episodes.

    Args:
        num_envs: Copies that step together.
        dims: Of the world, 1 or more.
        threshold: Largest distance (Euclidean) at which the goal counts as reached.
        speed: Distance per step and dimension at an action of 1.
        max_episode_steps: Env steps after which an episode is cut.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        dims: int = 3,
        threshold: float = 0.05,
        speed: float = 0.1,
        max_episode_steps: int = 50,
        device: torch.device | str = "cpu",
    ) -> None:
        if dims < 1:
            raise ConfigError(f"environment.dims must be 1 or more, got {dims}")
        for key, value in {"threshold": threshold, "speed": speed}.items():
            if not value > 0.0:
                raise ConfigError(f"environment.{key} must be more than 0, got {value}")
        self._dims, self._threshold, self._speed = dims, threshold, speed
        place = Box((dims,), low=-BOUND, high=BOUND)
        observation = {"observation": place, "achieved_goal": place, "desired_goal": place}
        action = Box((dims,), low=-1.0, high=1.0)
        super().__init__(EnvSpec(f"tensor/Reach-{dims}d", observation, action, max_episode_steps), num_envs, device)

    def step(self, actions: Actions) -> Step:
        """Step every copy and report which of them are at their goal."""
        step = super().step(actions)
        return step._replace(infos={"is_success": (step.rewards == REACHED).float()})

    def _initial(self) -> Dynamics:
        draw = self._uniform(2, self._dims, low=-BOUND, high=BOUND)
        return {"position": draw[:, 0], "goal": draw[:, 1]}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        position = (state["position"] + self._speed * actions.clamp(-1.0, 1.0)).clamp(-BOUND, BOUND)
        is_there = (position - state["goal"]).norm(dim=-1) <= self._threshold
        rewards = is_there * (REACHED - MISSED) + MISSED
        return {"position": position}, rewards, torch.zeros_like(is_there)

    def _observe(self, state: Dynamics) -> Observation:
        position, goal = state["position"], state["goal"]
        return {"observation": position.clone(), "achieved_goal": position.clone(), "desired_goal": goal.clone()}
