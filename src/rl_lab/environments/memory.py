"""A recall task: the cue is shown once, the answer is asked for later, so only a policy with memory solves it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec
from rl_lab.environments.tensor_env import Dynamics, TensorEnv


class Memory(TensorEnv):
    """Sees a one-hot cue at the first step, blanks after it, and a question flag at the last of `length` steps.

    The action at the question earns 1 when it names the cue, else 0; without memory the best mean is 1 / num_cues.

    Args:
        num_envs: Copies that step together.
        num_cues: Different cues, and as many actions.
        length: Env steps of an episode.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self, num_envs: int, *, num_cues: int = 4, length: int = 6, device: torch.device | str = "cpu"
    ) -> None:
        if length < 2 or num_cues < 2:
            raise ConfigError(f"environment.length and num_cues must be 2 or more, got {length} and {num_cues}")
        spec = EnvSpec("tensor/Memory", Box((num_cues + 1,), low=0.0, high=1.0), Discrete(num_cues), length)
        super().__init__(spec, num_envs, device)
        self.num_cues, self.length = num_cues, length

    def _initial(self) -> Dynamics:
        return {"cue": self._integers(self.num_cues)}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        is_question = state["elapsed"] == self.length - 1
        return {}, (is_question & (actions == state["cue"])).float(), is_question

    def _observe(self, state: Dynamics) -> Tensor:
        is_first = (state["elapsed"] == 0).unsqueeze(-1)
        is_question = (state["elapsed"] == self.length - 1).unsqueeze(-1)
        cue = F.one_hot(state["cue"], self.num_cues)
        return torch.cat((cue * is_first, is_question), dim=-1).float()  # [N, num_cues + 1]
