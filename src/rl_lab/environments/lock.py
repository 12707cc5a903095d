"""A combination lock: a reward that chance never finds, so that only a policy that looks for what is new does."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec
from rl_lab.environments.tensor_env import Dynamics, TensorEnv


class Lock(TensorEnv):
    """Sees how many turns are right so far, one-hot; a wrong one leads back to the start, the last right one pays 1.

    Which of the choices is right differs from turn to turn and is always the same. An episode ends when the lock opens
    and is cut after twice as many steps as there are turns. Random choices open it with probability
    `choices ** -turns` at a try.

    Args:
        num_envs: Copies that step together.
        turns: Right choices in a row that open it.
        choices: Actions.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(self, num_envs: int, *, turns: int = 12, choices: int = 4, device: torch.device | str = "cpu") -> None:
        if turns < 1 or choices < 2:
            raise ConfigError(f"environment.turns must be 1 or more and choices 2 or more, got {turns} and {choices}")
        spec = EnvSpec("tensor/Lock", Box((turns + 1,), low=0.0, high=1.0), Discrete(choices), 2 * turns)
        super().__init__(spec, num_envs, device)
        self._turns = turns
        self._combination = torch.arange(turns + 1, device=self.device).square() * 7 % 11 % choices

    def _initial(self) -> Dynamics:
        return {"turn": torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        turn = torch.where(actions == self._combination[state["turn"]], state["turn"] + 1, 0)
        is_open = turn == self._turns
        return {"turn": turn}, is_open.float(), is_open

    def _observe(self, state: Dynamics) -> Tensor:
        return F.one_hot(state["turn"], self._turns + 1).float()
