"""MultiGoal (Haarnoja et al., 2017): a point and four goals, where a good policy has several modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_lab.core import Actions, Box, ConfigError, EnvSpec, Step, unknown_name
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

GOALS = ((5.0, 0.0), (-5.0, 0.0), (0.0, 5.0), (0.0, -5.0))
GOAL_NAMES = ("east", "west", "north", "south")
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
        tasks: Goals (east, west, north, south) by name of a task; an info of that name is the reward of these alone.
        report_goals: Report as infos `at_east`, `at_west`, `at_north` and `at_south` whether a step led there.
        max_episode_steps: Env steps after which an episode is cut.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        tasks: Mapping[str, Sequence[str]] | None = None,
        report_goals: bool = False,
        max_episode_steps: int = 30,
        device: torch.device | str = "cpu",
    ) -> None:
        position, velocity = Box((2,), low=-BOUND, high=BOUND), Box((2,), low=-1.0, high=1.0)
        super().__init__(EnvSpec("tensor/MultiGoal", position, velocity, max_episode_steps), num_envs, device)
        self._goals = torch.tensor(GOALS, device=self.device)  # [4, 2]
        self._tasks = {name: _indices(f"tasks.{name}", goals) for name, goals in (tasks or {}).items()}
        self._reports = report_goals

    def step(self, actions: Actions) -> Step:
        """Step every copy and report the rewards of the tasks and the goals, where asked to."""
        step = super().step(actions)
        if not self._tasks and not self._reports:
            return step
        assert isinstance(step.final_observations, Tensor)
        assert isinstance(actions, Tensor)
        distances = self._squared_distances(step.final_observations)
        infos = {name: self._reward(distances[:, goals], actions) for name, goals in self._tasks.items()}
        if self._reports:
            there = (distances < GOAL_RADIUS**2).float()
            infos |= {f"at_{name}": there[:, index] for index, name in enumerate(GOAL_NAMES)}
        return step._replace(infos=infos)

    def _initial(self) -> Dynamics:
        draw = torch.randn(self.num_envs, 2, generator=self._generator, device=self.device)
        return {"position": (START_STD * draw).clamp(-BOUND, BOUND)}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        position = (state["position"] + actions.clamp(-1.0, 1.0)).clamp(-BOUND, BOUND)
        distances = self._squared_distances(position)
        is_there = distances.amin(-1) < GOAL_RADIUS**2
        return {"position": position}, self._reward(distances, actions), is_there

    def _squared_distances(self, position: Tensor) -> Tensor:
        return (position.unsqueeze(1) - self._goals).square().sum(-1)  # [N, 4]

    @staticmethod
    def _reward(distances: Tensor, actions: Tensor) -> Tensor:
        """Return the reward [N] of goals at these squared distances [N, goals]."""
        nearest = distances.amin(-1)
        costs = ACTION_COST * actions.clamp(-1.0, 1.0).square().sum(-1) + DISTANCE_COST * nearest
        return GOAL_REWARD * (nearest < GOAL_RADIUS**2) - costs

    def _observe(self, state: Dynamics) -> Tensor:
        return state["position"].clone()


def _indices(key: str, goals: Sequence[str]) -> list[int]:
    if not goals:
        raise ConfigError(f"environment.{key} names no goal (choices: {', '.join(GOAL_NAMES)})")
    for name in goals:
        if name not in GOAL_NAMES:
            raise ConfigError(unknown_name(f"goal in environment.{key}", name, GOAL_NAMES))
    return [GOAL_NAMES.index(name) for name in goals]
