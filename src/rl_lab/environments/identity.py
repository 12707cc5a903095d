"""The smallest tasks there are: do what the observation says. Any algorithm that cannot learn them is broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_lab.core import (
    ACTION_MASK,
    Box,
    ConfigError,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Observation,
    Space,
    unknown_name,
)
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

Kind = Literal["discrete", "multi_discrete", "continuous", "mixed"]
FORBIDDEN_REWARD = -1.0
KINDS = ("discrete", "multi_discrete", "continuous", "mixed")
CHOICES, NUMBERS = "choices", "numbers"  # the parts of a mixed action


class Identity(TensorEnv):
    """Reward 1 when the action matches the observed target, drawn anew at every step.

    discrete: a one-hot of `sizes[0]` choices. multi_discrete: one one-hot per entry of `sizes`, the reward is the share
    that matches. continuous: `len(sizes)` numbers in [-1, 1], the reward is 1 minus the mean squared distance. mixed:
    a dict of `choices` and `numbers` like the last two, the reward is the mean of theirs.

    Args:
        num_envs: Copies that step together.
        kind: Of the action: discrete, multi_discrete, continuous or mixed.
        sizes: Choices per action; for continuous actions only their number counts.
        masked: Forbid a random half of the wrong choices by `action_mask`; one earns -1 and is counted in `forbidden`.
        max_episode_steps: Env steps after which an episode is cut.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        kind: Kind = "discrete",
        sizes: Sequence[int] = (4,),
        masked: bool = False,
        max_episode_steps: int = 10,
        device: torch.device | str = "cpu",
    ) -> None:
        self._sizes = tuple(sizes)
        self._check(kind, masked)
        self._kind, self._masked = kind, masked
        super().__init__(self._make_spec(max_episode_steps), num_envs, device)

    @property
    def forbidden(self) -> Tensor:
        """Return how many forbidden choices each copy has been given since `reset`, [N]."""
        return self._state["forbidden"]

    def reset(self, seed: int) -> Observation:
        """Start every copy anew and forget the forbidden choices."""
        obs = super().reset(seed)
        self._state["forbidden"] = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return obs

    def _check(self, kind: str, masked: bool) -> None:
        if kind not in KINDS:
            raise ConfigError(unknown_name("environment.kind", kind, KINDS))
        if masked and kind == "continuous":
            raise ConfigError("environment.masked needs choices; environment.kind: continuous has none")
        if not self._sizes or (kind == "discrete" and len(self._sizes) != 1):
            raise ConfigError(f"environment.sizes does not fit kind {kind!r}: {list(self._sizes)}")

    def _make_spec(self, max_episode_steps: int) -> EnvSpec:
        width, numbers = sum(self._sizes), Box((len(self._sizes),), low=-1.0, high=1.0)
        if self._kind == "continuous":
            return EnvSpec("tensor/Identity-continuous", numbers, numbers, max_episode_steps)
        target = Box((width,), low=0.0, high=1.0)
        action: Space = Discrete(width) if self._kind == "discrete" else MultiDiscrete(self._sizes)
        if self._kind == "mixed":
            target = Box((width + len(self._sizes),), low=-1.0, high=1.0)
            action = {CHOICES: MultiDiscrete(self._sizes), NUMBERS: numbers}
        name = f"tensor/Identity-{self._kind}"
        if not self._masked:
            return EnvSpec(name, target, action, max_episode_steps)
        mask = Box((width,), dtype=torch.bool)
        return EnvSpec(f"{name}-masked", {"observation": target, ACTION_MASK: mask}, action, max_episode_steps)

    def _initial(self) -> Dynamics:
        return self._draw()

    def _draw(self) -> Dynamics:
        if self._kind == "continuous":
            return {"target": self._uniform(len(self._sizes), low=-1.0, high=1.0)}
        state = {"target": torch.stack([self._integers(size) for size in self._sizes], dim=-1)}  # [N, choices]
        if self._kind == "mixed":
            state["numbers"] = self._uniform(len(self._sizes), low=-1.0, high=1.0)
        if self._masked:
            state["mask"] = self._one_hot(state["target"]).bool() | (self._uniform(sum(self._sizes)) < 0.5)
        return state

    def _one_hot(self, choices: Tensor) -> Tensor:
        parts = [F.one_hot(choices[:, i], size) for i, size in enumerate(self._sizes)]
        return torch.cat(parts, dim=-1)  # [N, sum(sizes)]

    def _advance(self, state: Dynamics, actions: Any) -> tuple[Dynamics, Tensor, Tensor]:
        after = self._draw()
        terminated = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        if self._kind == "continuous":
            return after, _closeness(actions, state["target"]), terminated
        choices = (actions[CHOICES] if self._kind == "mixed" else actions).view(self.num_envs, -1)
        rewards = (choices == state["target"]).float().mean(-1)
        if self._kind == "mixed":
            rewards = 0.5 * (rewards + _closeness(actions[NUMBERS], state["numbers"]))
        if self._masked:
            is_forbidden = (self._one_hot(choices).bool() & ~state["mask"]).any(-1)
            rewards = torch.where(is_forbidden, FORBIDDEN_REWARD, rewards)
            after["forbidden"] = state["forbidden"] + is_forbidden
        return after, rewards, terminated

    def _observe(self, state: Dynamics) -> Observation:
        if self._kind == "continuous":
            return state["target"].clone()
        target = self._one_hot(state["target"]).float()
        if self._kind == "mixed":
            target = torch.cat([target, state["numbers"]], dim=-1)
        return {"observation": target, ACTION_MASK: state["mask"].clone()} if self._masked else target


def _closeness(numbers: Tensor, target: Tensor) -> Tensor:
    return 1.0 - (numbers - target).square().mean(-1)
