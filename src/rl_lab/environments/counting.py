"""A counting environment (after embodied): every row says where it belongs, so a buffer's mistake is a wrong number."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

ENV, EPISODE, STEP, LAST_ACTION = range(4)  # columns of the observation


class Counting(TensorEnv):
    """Observes [env index, episode number, step in the episode, last action or -1]; the reward is the step it led to.

    Episode e of copy i lasts `episode_length(i, e)` steps; it terminates where i + e is even, else it is truncated.

    Args:
        num_envs: Copies that step together.
        min_length: Env steps of the shortest episode.
        max_length: Env steps of the longest episode.
        num_actions: Choices, none of which matters.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        min_length: int = 3,
        max_length: int = 7,
        num_actions: int = 4,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 1 <= min_length <= max_length:
            raise ConfigError(f"environment.min_length must lie in 1..max_length={max_length}, got {min_length}")
        spec = EnvSpec("tensor/Counting", Box((4,)), Discrete(num_actions), max_length)
        super().__init__(spec, num_envs, device)
        self.min_length, self.max_length = min_length, max_length
        self._indices = torch.arange(num_envs, device=self.device)

    def episode_length(self, index: int | Tensor, episode: int | Tensor) -> int | Tensor:
        """Return how many steps this episode of this copy lasts."""
        return self.min_length + (index + episode) % (self.max_length - self.min_length + 1)

    def _initial(self) -> Dynamics:
        return {"last_action": torch.full_like(self._indices, -1)}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        elapsed = state["elapsed"] + 1
        is_even = (self._indices + state["episode"]) % 2 == 0
        terminated = is_even & (elapsed >= self.episode_length(self._indices, state["episode"]))
        return {"last_action": actions}, elapsed.float(), terminated

    def _is_time_up(self, state: Dynamics) -> Tensor:
        return state["elapsed"] >= self.episode_length(self._indices, state["episode"])

    def _observe(self, state: Dynamics) -> Tensor:
        columns = (self._indices, state["episode"], state["elapsed"], state["last_action"])
        return torch.stack(columns, dim=-1).float()  # [N, 4]
