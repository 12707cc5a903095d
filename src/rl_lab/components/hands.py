"""Hands among continuous actions: their entries are chosen from a few values, those of the arms are steered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rl_lab.components.continuous_actions import ActionScale
from rl_lab.core import Box, ConfigError, EnvSpec


@dataclass(frozen=True)
class Hands:
    """Entries of an action that open and close hands.

    Args:
        entries: Their numbers in the action, from 0 on.
        choices: What a hand may be told, in [-1, 1]: HIL-SERL has close, stay and open (-1, 0, 1).
        epsilon: How often all hands choose at random while exploring.
    """

    entries: tuple[int, ...]
    choices: tuple[float, ...] = (-1.0, 1.0)
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        if not self.entries or len(set(self.entries)) < len(self.entries):
            raise ConfigError(f"algorithm.hands.entries: must be different numbers of entries, not {self.entries}")
        if len(set(self.choices)) < 2 or not all(-1.0 <= choice <= 1.0 for choice in self.choices):
            raise ConfigError(f"algorithm.hands.choices: two or more different values in [-1, 1], not {self.choices}")
        if not 0.0 <= self.epsilon <= 1.0:
            raise ConfigError(f"algorithm.hands.epsilon: must be from 0 to 1, not {self.epsilon}")

    @property
    def num_choices(self) -> int:
        """Return how many things all hands together may be told."""
        return len(set(self.choices)) ** len(self.entries)


class ArmsAndHands:
    """Takes actions apart into those of the arms and one choice for all hands, and puts them together.

    Args:
        hands: Which entries are whose.
        spec: Of the environment.
        workflow: Who asks, for the error of an action space that does not fit.
        device: Of the actions.
    """

    def __init__(self, hands: Hands, spec: EnvSpec, workflow: str, device: torch.device) -> None:
        scale, space = ActionScale(spec, workflow), spec.action
        assert isinstance(space, Box)
        if outside := [entry for entry in hands.entries if not 0 <= entry < scale.dim]:
            raise ConfigError(f"algorithm.hands.entries: no entry {outside[0]} in actions of {scale.dim} numbers")
        arms = [entry for entry in range(scale.dim) if entry not in hands.entries]
        if not arms or len(space.shape) != 1:
            raise ConfigError(f"algorithm.hands.entries: {list(space.shape)} numbers must leave some for the arms")
        self.arm_spec = replace(spec, action=replace(space, shape=(len(arms),)))
        self._scale, self._count = scale, hands.num_choices
        choices = sorted(set(hands.choices))
        self._choices = torch.tensor(choices, device=device)
        self._borders = 0.5 * (self._choices[1:] + self._choices[:-1])  # between neighbours
        self._powers = len(choices) ** torch.arange(len(hands.entries), device=device)
        self._arms, self._hands = (torch.tensor(numbers, device=device) for numbers in (arms, hands.entries))
        self._order = torch.cat([self._arms, self._hands]).argsort()

    def arms(self, actions: Tensor) -> Tensor:
        """Return the part [..., arms] of actions that are the environment's."""
        return actions.index_select(-1, self._arms)

    def chosen(self, actions: Tensor) -> Tensor:
        """Return which choice [...] of all hands comes nearest to actions of the environment."""
        told = self._scale.to_unit(actions).index_select(-1, self._hands)
        nearest = (told.unsqueeze(-1) > self._borders).sum(-1)  # [..., hands]
        return (nearest * self._powers).sum(-1)

    def together(self, arms: Tensor, choice: Tensor) -> Tensor:
        """Return actions of the environment from its arms' part and a choice [...] of all hands."""
        digits = choice.unsqueeze(-1) // self._powers % len(self._choices)
        told = self._scale.to_environment(self._choices[digits])
        return torch.cat([arms, told.to(arms.dtype)], -1).index_select(-1, self._order)

    def explored(self, choice: Tensor, epsilon: float) -> Tensor:
        """Return choices [N], with this chance each a random one instead."""
        others = torch.randint(self._count, choice.shape, device=choice.device)
        return torch.where(torch.rand(choice.shape, device=choice.device) < epsilon, others, choice)
