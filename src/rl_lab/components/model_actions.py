"""Actions as world models and planners speak of them, and as the environment does.

A model reads one row: all numbers of an action in [-1, 1], and then all of its choices as one-hots. Those of a dict of
actions are in the order of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from rl_lab.components.continuous_actions import ActionScale
from rl_lab.components.observation import read_leaf
from rl_lab.core import ACTION_MASK, Actions, Box, ConfigError, Discrete, EnvSpec, MultiDiscrete, flat_dim, leaves_of
from rl_lab.ops.distributions import gumbel_perturbed, masked_logits


class ModelActions:
    """Translates between the two.

    Args:
        spec: Of the environment.
        workflow: Who asks, for the error of an action space that does not fit.
    """

    def __init__(self, spec: EnvSpec, workflow: str) -> None:
        parts, self._is_dict = leaves_of(spec.action), isinstance(spec.action, Mapping)
        self._scales = {
            name: ActionScale(replace(spec, id=_named(spec, name), action=leaf), workflow)
            for name, leaf in parts.items()
            if isinstance(leaf, Box)
        }
        self._choices = {name: leaf for name, leaf in parts.items() if not isinstance(leaf, Box)}
        self.num_numbers = sum(scale.dim for scale in self._scales.values())
        self.nvec = tuple(size for leaf in self._choices.values() for size in _sizes(leaf))
        self.num_choices, self.dim = sum(self.nvec), flat_dim(spec.action)
        self._widths = [flat_dim(parts[name]) for name in (*self._scales, *self._choices)]
        _reject_mask(spec, self.num_choices)

    def read(self, actions: Actions) -> Tensor:
        """Return what a model reads [..., A] of actions of the environment."""
        given = actions if isinstance(actions, Mapping) else {"": actions}
        parts = [scale.to_unit(given[name]) for name, scale in self._scales.items()]
        parts += [read_leaf(leaf, given[name]) for name, leaf in self._choices.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def to_environment(self, actions: Tensor) -> Actions:
        """Return what the environment takes for actions [..., A]; numbers are cut to its bounds."""
        columns = dict(zip((*self._scales, *self._choices), actions.split(self._widths, -1), strict=True))
        taken = {name: scale.to_environment(columns[name].clamp(-1.0, 1.0)) for name, scale in self._scales.items()}
        taken |= {name: _chosen(leaf, columns[name]) for name, leaf in self._choices.items()}
        return taken if self._is_dict else taken[""]

    def random(self, num_envs: int, device: torch.device, mask: Tensor | None = None) -> Tensor:
        """Draw actions [num_envs, A] uniformly; of choices those that `mask` [num_envs, choices] allows."""
        parts = []
        if self.num_numbers:
            parts.append(2.0 * torch.rand(num_envs, self.num_numbers, device=device) - 1.0)
        if self.nvec:
            scores = masked_logits(torch.zeros(num_envs, self.num_choices, device=device), mask)
            parts.append(one_hots(gumbel_perturbed(scores), self.nvec))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def split(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers [..., numbers] and the one-hots [..., choices] of actions [..., A]."""
        return actions[..., : self.num_numbers], actions[..., self.num_numbers :]

    def disturbed(self, actions: Tensor, std: Tensor | float, epsilon: float, mask: Tensor | None) -> Tensor:
        """Return actions [N, A] with normal noise on their numbers and, as often as `epsilon`, random choices."""
        numbers, choices = self.split(actions)
        if self.num_numbers:
            numbers = (numbers + std * torch.randn_like(numbers)).clamp(-1.0, 1.0)
        if self.nvec:
            is_random = torch.rand(len(actions), 1, device=actions.device) < epsilon
            others = self.split(self.random(len(actions), actions.device, mask))[1]
            choices = torch.where(is_random, others, choices)
        return torch.cat([numbers, choices], -1)


def limited(actions: Tensor) -> Tensor:
    """Return actions whose numbers lie in [-1, 1], with their gradient: a normal policy may dream of larger ones."""
    return actions / actions.detach().abs().clamp(min=1.0)


def one_hots(scores: Tensor, nvec: tuple[int, ...]) -> Tensor:
    """Return the one-hots [..., A] of the choices with the highest scores [..., A]."""
    parts = [part.argmax(-1, keepdim=True) for part in scores.split(nvec, -1)]
    places = [torch.arange(size, device=scores.device) for size in nvec]
    return torch.cat([(a == b).to(scores.dtype) for a, b in zip(parts, places, strict=True)], -1)


def _sizes(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    return (space.n,) if isinstance(space, Discrete) else space.nvec


def _chosen(space: Discrete | MultiDiscrete, scores: Tensor) -> Tensor:
    """Return the choices that are largest in rows of one-hots."""
    if isinstance(space, Discrete):
        return scores.argmax(-1)
    return torch.stack([part.argmax(-1) for part in scores.split(space.nvec, -1)], -1)


def _named(spec: EnvSpec, name: str) -> str:
    return f"{spec.id}: {name}" if name else spec.id


def _reject_mask(spec: EnvSpec, num_choices: int) -> None:
    """Raise when an environment masks other than its choices."""
    if not isinstance(spec.observation, Mapping) or ACTION_MASK not in spec.observation:
        return
    width = flat_dim(spec.observation[ACTION_MASK])
    if width != num_choices:
        raise ConfigError(
            f"environment: {ACTION_MASK} of {spec.id!r} has {width} entries, but its actions have {num_choices} choices"
        )
