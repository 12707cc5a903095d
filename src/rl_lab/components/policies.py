"""Stochastic policies of off-policy agents: a trunk and a head, from features to actions of the environment."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.action_heads import CategoricalHead
from rl_lab.components.array_mlp import fast_forward
from rl_lab.components.continuous_actions import ActionScale
from rl_lab.components.precision import in_float32
from rl_lab.components.squashed_heads import GaussianPolicyHead
from rl_lab.core import Discrete, EnvSpec
from rl_lab.ops.distributions import Categorical, Distribution, masked_logits

Mask = Tensor | None  # True where an action is allowed


class Policy(nn.Module):
    """A distribution over latents for every feature vector, and what latents mean to critics and environments."""

    trunk: nn.Module

    @abstractmethod
    def forward(self, features: Tensor, mask: Mask) -> Distribution:
        """Return the distribution over latents."""

    @abstractmethod
    def behave(self, features: Tensor, mask: Mask, *, explore: bool) -> Tensor:
        """Return actions for the environment: a sample, or the most likely ones."""

    @abstractmethod
    def random(self, features: Tensor, mask: Mask) -> Tensor:
        """Return uniformly random actions for the environment."""

    @abstractmethod
    def for_critic(self, latents: Any) -> Any:
        """Return what critics read of latents."""

    @abstractmethod
    def recorded(self, actions: Tensor) -> Tensor:
        """Return what critics read of actions that the environment took."""


class SquashedPolicy(Policy):
    """Continuous actions: latents are squashed by tanh, critics read [-1, 1].

    Args:
        trunk: `components.actor`.
        head: From its features to a distribution over latents.
        scale: Of the environment's actions.
    """

    def __init__(self, trunk: nn.Module, head: nn.Module, scale: ActionScale) -> None:
        super().__init__()
        self.trunk, self.head, self._scale = trunk, head, scale
        is_gaussian = isinstance(head, GaussianPolicyHead)
        self._output = fast_forward(trunk, head.layer) if is_gaussian else None  # type: ignore[arg-type]

    def forward(self, features: Tensor, mask: Mask) -> Distribution:
        """Return the distribution over latents."""
        return in_float32(self.head, self.trunk(features))

    def behave(self, features: Tensor, mask: Mask, *, explore: bool) -> Tensor:
        """Return actions for the environment: a sample, or the most likely ones."""
        output = self._output
        pi = self(features, mask) if output is None else GaussianPolicyHead.distribution(output(features))
        return self._scale.to_environment(torch.tanh(pi.sample() if explore else pi.mode()))

    def random(self, features: Tensor, mask: Mask) -> Tensor:
        """Return uniformly random actions for the environment."""
        return self._scale.to_environment(self._scale.uniform(len(features), features.device))

    def for_critic(self, latents: Any) -> Any:
        """Return what critics read of latents."""
        return torch.tanh(latents)

    def recorded(self, actions: Tensor) -> Tensor:
        """Return what critics read of actions that the environment took."""
        return self._scale.to_unit(actions)


class CategoricalPolicy(Policy):
    """Discrete actions: latents are choices; where all are meant at once they are None.

    Args:
        trunk: `components.actor`.
        spec: Of the environment.
    """

    def __init__(self, trunk: nn.Module, spec: EnvSpec) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.trunk, self.head = trunk, CategoricalHead(int(trunk.output_dim), spec.action)  # type: ignore[arg-type]
        self._num_choices = spec.action.n
        self._output = fast_forward(trunk, self.head.layer)

    def forward(self, features: Tensor, mask: Mask) -> Distribution:
        """Return the distribution over choices."""
        return in_float32(self.head, self.trunk(features), mask)

    def behave(self, features: Tensor, mask: Mask, *, explore: bool) -> Tensor:
        """Return actions for the environment: a sample, or the most likely ones."""
        pi = self.head.distribution(self._output(features), mask)
        return pi.sample() if explore else pi.mode()

    def random(self, features: Tensor, mask: Mask) -> Tensor:
        """Return uniformly random actions for the environment, of those that are allowed."""
        alike = torch.zeros(len(features), self._num_choices, device=features.device)
        return Categorical(masked_logits(alike, mask)).sample()

    def for_critic(self, latents: Any) -> Any:
        """Return what critics read of choices."""
        return latents

    def recorded(self, actions: Tensor) -> Tensor:
        """Return what critics read of actions that the environment took."""
        return actions
