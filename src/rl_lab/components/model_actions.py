"""Actions as world models and planners speak of them, numbers in [-1, 1] or one-hots, and as the environment does."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.components.continuous_actions import ActionScale
from rl_lab.components.observation import read_leaf
from rl_lab.core import Box, Discrete, EnvSpec, flat_dim
from rl_lab.core.spaces import Leaf
from rl_lab.ops.distributions import gumbel_perturbed, masked_logits


class ModelActions:
    """Translates between the two.

    Args:
        spec: Of the environment.
        workflow: Who asks, for the error of an action space that does not fit.
    """

    def __init__(self, spec: EnvSpec, workflow: str) -> None:
        self._space, self.dim = spec.action, flat_dim(spec.action)
        self._scale = ActionScale(spec, workflow) if isinstance(spec.action, Box) else None
        self.nvec = choice_sizes(spec.action)

    @property
    def are_numbers(self) -> bool:
        """Return whether actions are continuous."""
        return self._scale is not None

    def read(self, actions: Tensor) -> Tensor:
        """Return what a model reads [..., A] of actions of the environment."""
        return read_leaf(self._space, actions) if self._scale is None else self._scale.to_unit(actions)

    def to_environment(self, actions: Tensor) -> Tensor:
        """Return what the environment takes for actions [..., A]; numbers are cut to its bounds."""
        if self._scale is not None:
            return self._scale.to_environment(actions.clamp(-1.0, 1.0))
        choices = torch.stack([part.argmax(-1) for part in actions.split(self.nvec, -1)], -1)
        return choices.squeeze(-1) if isinstance(self._space, Discrete) else choices

    def random(self, num_envs: int, device: torch.device, mask: Tensor | None = None) -> Tensor:
        """Draw actions [num_envs, A] uniformly, of those that are allowed."""
        if self._scale is not None:
            return self._scale.uniform(num_envs, device)
        scores = gumbel_perturbed(masked_logits(torch.zeros(num_envs, self.dim, device=device), mask))
        return one_hots(scores, self.nvec)


def choice_sizes(space: Leaf) -> tuple[int, ...]:
    """Return how many choices each part of an action has; none for numbers."""
    if isinstance(space, Box):
        return ()
    return (space.n,) if isinstance(space, Discrete) else space.nvec


def one_hots(scores: Tensor, nvec: tuple[int, ...]) -> Tensor:
    """Return the one-hots [..., A] of the choices with the highest scores [..., A]."""
    parts = [part.argmax(-1, keepdim=True) for part in scores.split(nvec, -1)]
    places = [torch.arange(size, device=scores.device) for size in nvec]
    return torch.cat([(a == b).to(scores.dtype) for a, b in zip(parts, places, strict=True)], -1)
