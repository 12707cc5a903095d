"""Several tasks in one model: what is learned of each of them, and which numbers of an action it uses (TD-MPC2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.model_actions import ModelActions
from rl_lab.components.observation import is_image, read_leaf
from rl_lab.core import Box, ConfigError, Observation, Space, flat_dim, unknown_name
from rl_lab.core.ranges import Count

INIT_RANGE = 0.02  # tdmpc2/common/init.py
MAX_NORM = 1.0  # of an embedding
GAMMA_RANGE, EPISODE_SHARE = (0.95, 0.995), 5  # discounts by the length of an episode; tdmpc2/config.yaml


def discount_by_length(episode_steps: int) -> float:
    """Return TD-MPC2's discount: nearer to 1 where episodes are longer."""
    share = episode_steps / EPISODE_SHARE
    low, high = GAMMA_RANGE
    return min(max((share - 1.0) / share, low), high)


class TaskEmbedding(nn.Module):
    """A vector for each task, which the observation names by a part of its own: a choice, or a one-hot.

    Args:
        key: The part of the observation that says which task it is; nothing else reads it.
        dim: Numbers of a vector; longer ones than 1 are cut to that.
        action_dims: How many numbers of an action each task uses, the first ones; null: every task all of them.
        episode_steps: Env steps of an episode of each task, from which its discount follows; null: that of all tasks.
    """

    mask: Tensor
    gammas: Tensor

    def __init__(
        self,
        key: str = "task",
        dim: Count = 96,
        action_dims: Sequence[int] | None = None,
        episode_steps: Sequence[Count] | None = None,
    ) -> None:
        super().__init__()
        self.key, self.dim, self.episode_steps = key, dim, episode_steps
        self._action_dims = None if action_dims is None else tuple(action_dims)

    def bind(self, space: Space, actions: ModelActions) -> dict[str, Any]:
        """Make the vectors; return the parts of the observation that are left for others."""
        named = dict(space) if isinstance(space, Mapping) else {}
        if self.key not in named:
            raise ConfigError(
                unknown_name("components.world_model.tasks.key: part of the observation", self.key, named)
            )
        leaf = named.pop(self.key)
        if is_image(leaf):
            raise ConfigError(f"components.world_model.tasks.key: {self.key!r} is an image, not a task")
        self._leaf, count = leaf, flat_dim(leaf)
        self.vectors = nn.Parameter(torch.empty(count, self.dim).uniform_(-INIT_RANGE, INIT_RANGE))
        self.register_buffer("mask", self._used(count, actions), persistent=False)
        steps = self.episode_steps or ()
        if self.episode_steps is not None and len(steps) != count:
            raise ConfigError(f"components.world_model.tasks.episode_steps: {len(steps)} of {count} tasks are given")
        discounts = torch.tensor([discount_by_length(number) for number in steps]).view(-1, 1)
        self.register_buffer("gammas", discounts, persistent=False)
        return named

    def _used(self, count: int, actions: ModelActions) -> Tensor:
        """Return which entries of an action each task uses, [tasks, A] of 0 and 1; choices are always used."""
        dims = self._action_dims or (actions.num_numbers,) * count
        key = "components.world_model.tasks.action_dims"
        if len(dims) != count:
            raise ConfigError(f"{key}: {len(dims)} of {count} tasks are given")
        if not all(0 <= dim <= actions.num_numbers for dim in dims):
            raise ConfigError(f"{key}: an action has {actions.num_numbers} numbers, {list(dims)} do not fit")
        places = torch.arange(actions.dim)
        return torch.stack([(places < dim) | (places >= actions.num_numbers) for dim in dims]).float()

    def forward(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Return the vectors [..., dim] of the tasks of observations, and which entries of an action [..., A] count."""
        chosen = self._chosen(obs)
        length = self.vectors.norm(dim=-1, keepdim=True).detach()
        return chosen @ (self.vectors * (MAX_NORM / length.clamp(min=MAX_NORM))), chosen @ self.mask

    def discounts(self, obs: Observation) -> Tensor | None:
        """Return the discounts [..., 1] of the tasks of observations; None: tasks have none of their own."""
        if self.episode_steps is None:
            return None
        return (self._chosen(obs) * self.gammas.squeeze(-1)).sum(-1, keepdim=True)  # no product: bfloat16 would round

    def _chosen(self, obs: Observation) -> Tensor:
        """Return the tasks of observations as one-hots."""
        assert isinstance(obs, Mapping)
        seen = obs[self.key]
        return seen.float() if isinstance(self._leaf, Box) else read_leaf(self._leaf, seen)
