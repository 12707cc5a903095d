"""Episodes that a memory dreams up: what controllers would earn in them, what they look like, how true they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.components.controller import Controller
from rl_lab.components.mdn_rnn import MDNRNN, MemoryState
from rl_lab.components.scan import Fuse
from rl_lab.core.context import as_it_is
from rl_lab.ops.mixtures import mixture_sample


class Place(NamedTuple):
    """Where dreams are: G controllers in B dreams each."""

    memory: MemoryState  # [G B, H]
    latents: Tensor  # [G B, Z]


class Dreams:
    """Lets controllers act in what a memory expects.

    Args:
        memory: What expects.
        controller: How parameters become actions.
        fuse: Makes kernels of a step.
        temperature: Of the draws: above 1 dreams are less certain than the memory is, and harder to exploit.
    """

    def __init__(self, memory: MDNRNN, controller: Controller, fuse: Fuse = as_it_is, *, temperature: float) -> None:
        self._memory, self._controller, self._temperature = memory, controller, temperature
        self._next = fuse(self._step)

    def steps(self, parameters: Tensor, place: Place, horizon: int) -> Iterator[tuple[Place, Tensor, Tensor]]:
        """Yield, for each step, the place, the rewards [G, B] and the chances that the episode ends there [G, B].

        Controllers [G, D] all begin at the same `place` of B dreams.
        """
        count = len(parameters)
        place = Place(MemoryState(*(leaf.repeat(count, 1) for leaf in place.memory)), place.latents.repeat(count, 1))
        for _ in range(horizon):
            place, rewards, ends = self._next(parameters, place)
            yield place, rewards, ends

    def returns(self, parameters: Tensor, place: Place, is_over: Tensor, horizon: int) -> Tensor:
        """Return what controllers [G, D] earn in each dream [G, B]; rewards count as far as the episode goes on.

        Where `is_over` [B], it has ended before it began.
        """
        total, goes_on = torch.zeros((), device=is_over.device), (~is_over).float()
        for _, rewards, ends in self.steps(parameters, place, horizon):
            total, goes_on = total + goes_on * rewards, goes_on * (1.0 - ends)
        return total

    def _step(self, parameters: Tensor, place: Place) -> tuple[Place, Tensor, Tensor]:
        count = len(parameters)
        features = torch.cat([place.latents, place.memory.hidden], -1).unflatten(0, (count, -1))
        actions = self._controller(parameters, features).flatten(0, 1)
        memory = self._memory.advance(place.memory, place.latents, actions)
        expected = self._memory.outlook(memory.hidden)
        latents = mixture_sample(expected.latents, self._temperature)
        rewards, ends = (leaf.unflatten(0, (count, -1)) for leaf in (expected.rewards, expected.ends.sigmoid()))
        return Place(memory, latents), rewards, ends
