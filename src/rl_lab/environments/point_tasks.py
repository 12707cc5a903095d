"""Points that go to goals: several tasks in one environment, with worlds, actions and episodes of different sizes.

What each task sees and does is filled up to the size of the largest, and a part of the observation names the task, as
multi-task agents want it (TD-MPC2; Hansen et al., 2024, https://arxiv.org/abs/2310.16828).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Leaf, Observation
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

BOUND = 1.0  # a world is twice this long in each dimension
SPEED = 0.1  # distance per step and dimension
SHARPNESS = 2.0  # of rewards: at this rate they fall with the distance


class PointTasks(TensorEnv):
    """Moves a point by a velocity in [-1, 1] per dimension; in every second task the point goes the other way.

    Start, goal and task are drawn for each episode. Observes a dict: `task`, and `state`, the position and then the
    goal, with zeros in dimensions that the task has not. The reward is exp(-2 distance), 1 at the goal; numbers of an
    action beyond the task's dimensions do nothing. Episodes are never terminated, only cut.

    Args:
        num_envs: Copies that step together.
        dims: Dimensions of each task's world, which are the numbers of its actions.
        episode_steps: Env steps of an episode of each task.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        dims: Sequence[int] = (1, 2, 3),
        episode_steps: Sequence[int] = (20, 30, 40),
        device: torch.device | str = "cpu",
    ) -> None:
        if not dims or min(dims) < 1:
            raise ConfigError(f"environment.dims must be one or more numbers, each 1 or more, got {list(dims)}")
        if len(episode_steps) != len(dims) or min(episode_steps) < 1:
            raise ConfigError(
                f"environment.episode_steps must be {len(dims)} numbers (a task each), each 1 or more, got "
                f"{list(episode_steps)}"
            )
        self._most = max(dims)
        observation: dict[str, Leaf] = {
            "task": Discrete(len(dims)),
            "state": Box((2 * self._most,), low=-BOUND, high=BOUND),
        }
        action = Box((self._most,), low=-1.0, high=1.0)
        spec = EnvSpec(f"tensor/PointTasks-{len(dims)}", observation, action, max(episode_steps))
        super().__init__(spec, num_envs, device)
        places, sizes = torch.arange(self._most, device=self.device), torch.tensor(list(dims), device=self.device)
        self._used = (places < sizes[:, None]).float()  # [tasks, most]
        self._limits = torch.tensor(list(episode_steps), device=self.device)
        self._signs = 1.0 - 2.0 * (torch.arange(len(dims), device=self.device) % 2)

    def _initial(self) -> Dynamics:
        task = self._integers(len(self._limits))
        places = self._uniform(2, self._most, low=-BOUND, high=BOUND) * self._used[task].unsqueeze(1)
        return {"task": task, "position": places[:, 0], "goal": places[:, 1]}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        task = state["task"]
        velocity = SPEED * self._signs[task].unsqueeze(1) * actions.clamp(-1.0, 1.0) * self._used[task]
        position = (state["position"] + velocity).clamp(-BOUND, BOUND)
        rewards = (-SHARPNESS * (position - state["goal"]).norm(dim=-1)).exp()
        return {"position": position}, rewards, torch.zeros_like(task, dtype=torch.bool)

    def _observe(self, state: Dynamics) -> Observation:
        return {"task": state["task"].clone(), "state": torch.cat([state["position"], state["goal"]], -1)}

    def _is_time_up(self, state: Dynamics) -> Tensor:
        return state["elapsed"] >= self._limits[state["task"]]
