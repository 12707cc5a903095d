"""Bounded continuous actions: networks speak of [-1, 1], the environment of its own bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, flat_dim

_ANY = ("BehaviorCloning", "Dreamer", "PlaNet", "TDMPC", "WorldModels")
FITTING = {  # which workflows take which actions
    "continuous": (*_ANY, "DiffusionPolicy", "PPO", "PPOAMP", "RLPD", "SAC", "SQL", "TD3"),
    "discrete": (*_ANY, "DQN", "PPO", "PPOAMP", "SAC"),
    "multi-discrete": (*_ANY, "PPO", "PPOAMP"),
    "mixed": _ANY,
}


class ActionScale:
    """Maps actions in [-1, 1] to the bounds of a continuous action space and back.

    Args:
        spec: Of the environment.
        workflow: Who asks, for the error of an action space that does not fit.
    """

    def __init__(self, spec: EnvSpec, workflow: str) -> None:
        space = spec.action
        if not isinstance(space, Box):
            reject_actions(spec, workflow)
        if not math.isfinite(space.high - space.low):
            raise ConfigError(f"workflow: {workflow} needs finite action bounds, those of {spec.id!r} are infinite")
        if flat_dim(space) == 0:
            raise ConfigError(f"workflow: {workflow} needs actions, those of {spec.id!r} have no dimension")
        self.shape, self.dim = space.shape, flat_dim(space)
        self._middle, self._half = 0.5 * (space.high + space.low), 0.5 * (space.high - space.low)
        self._is_unit = space.low == -1.0 and space.high == 1.0

    def to_environment(self, actions: Tensor) -> Tensor:
        """Return what the environment takes for actions [..., dim] in [-1, 1]."""
        scaled = actions if self._is_unit else actions * self._half + self._middle
        return scaled if len(self.shape) == 1 else scaled.reshape(*actions.shape[:-1], *self.shape)

    def to_unit(self, actions: Tensor) -> Tensor:
        """Return [..., dim] in [-1, 1] for actions of the environment."""
        batch = actions.shape[: actions.ndim - len(self.shape)]
        flat = actions if len(self.shape) == 1 else actions.reshape(*batch, self.dim)
        return flat if self._is_unit else (flat - self._middle) / self._half

    def uniform(self, num_envs: int, device: torch.device) -> Tensor:
        """Draw actions [num_envs, dim] uniformly from [-1, 1]."""
        return torch.empty(num_envs, self.dim, device=device).uniform_(-1.0, 1.0)


def reject_actions(spec: EnvSpec, workflow: str) -> NoReturn:
    """Raise because a workflow cannot act here, and name those that can."""
    kind = action_kind(spec)
    fitting = ", ".join(sorted(FITTING[kind]))
    raise ConfigError(f"workflow: {workflow} does not take the {kind} actions of {spec.id!r} (fitting: {fitting})")


def action_kind(spec: EnvSpec) -> str:
    """Return the key of `FITTING` for an environment's actions."""
    if isinstance(spec.action, Mapping):
        return "mixed"
    if isinstance(spec.action, Box):
        return "continuous"
    return "discrete" if isinstance(spec.action, Discrete) else "multi-discrete"
