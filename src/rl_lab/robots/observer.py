"""What an observation is made of on the robot: clip, scale and history of each term, as the environment has them.

Noise is the environment's own, and so are delays: real sensors have theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_lab.core import Box, Observation
from rl_lab.core.observer import Observer
from rl_lab.robots.managers.observations import ObservationGroup, ObservationManager


class LeggedObserver(Observer):
    """Readings `<group>.<term>` [N, k], just `<term>` of a single group -> the observation.

    Args:
        manager: The groups of the environment.
    """

    def __init__(self, manager: ObservationManager) -> None:
        super().__init__()
        self._groups = manager.groups
        self.space: Mapping[str, Box] = {
            self._name(name, index): Box((width,))
            for name, group in self._groups.items()
            for index, width in enumerate(group.widths)
        }

    def _name(self, group: str, index: int) -> str:
        term = self._groups[group].terms[index].name
        return f"{group}.{term}" if len(self._groups) > 1 else term

    def initial_carry(self, num_envs: int) -> dict[str, Tensor]:
        """Return the frames before the newest one of every term with a history, [N, H - 1, k], oldest first."""
        return {
            self._name(name, index): torch.zeros(num_envs, history - 1, width)
            for name, group in self._groups.items()
            for index, (history, width) in enumerate(zip(group.histories, group.widths, strict=True))
            if history > 1
        }

    def forward(
        self, readings: Mapping[str, Tensor], carry: Mapping[str, Tensor], is_first: Tensor
    ) -> tuple[Observation, dict[str, Tensor]]:
        """Return the groups by name, one vector where there is one, and the next frames."""
        seen, kept = {}, {}
        for name, group in self._groups.items():
            parts = []
            for index, (low, high, scale) in enumerate(_columns(group)):
                term = self._name(name, index)
                newest = (readings[term].clamp(low, high) * scale).unsqueeze(1)
                frames = newest
                if term in carry:
                    before = torch.where(is_first.view(-1, 1, 1), newest, carry[term])  # an episode begins with copies
                    frames = torch.cat((before, newest), 1)
                    kept[term] = frames[:, 1:]
                parts.append(frames.flatten(1))
            seen[name] = torch.cat(parts, -1)
        return (seen if len(seen) > 1 else next(iter(seen.values()))), kept

    def readings(self, obs: Observation) -> dict[str, Tensor]:
        """Return the newest frame of each term without its scale."""
        found = {}
        for name, group in self._groups.items():
            lengths = [width * history for width, history in zip(group.widths, group.histories, strict=True)]
            vector = obs if isinstance(obs, Tensor) else obs[name]
            parts = vector.split(lengths, -1)
            for index, (part, (_, _, scale)) in enumerate(zip(parts, _columns(group), strict=True)):
                newest = part[:, -group.widths[index] :]
                found[self._name(name, index)] = torch.where(scale == 0.0, 0.0, newest / scale)
        return found


def _columns(group: ObservationGroup) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return lower and upper bound and scale of each term."""
    low, high, scale = (values.cpu().split(group.widths) for values in group.bounds_and_scale)
    return list(zip(low, high, scale, strict=True))
