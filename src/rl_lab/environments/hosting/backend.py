"""Where the members of a gymnasium vector environment live: in this process, or behind `process_pool`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_lab.core import Instruction
from rl_lab.environments.hosting.codec import Array, Arrays
from rl_lab.environments.hosting.group import Blueprint, Group, StepArrays


class Outcome(NamedTuple):
    """New arrays of one vector step, the caller's to keep."""

    observations: Arrays
    rewards: Array
    terminated: Array
    truncated: Array
    finals: Arrays | None  # None: no episode ended, so they equal `observations`
    infos: Array  # [info_keys, num_envs] float32


class Backend(ABC):
    """Steps all members; every method raises MemberFault for a member at fault."""

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> Arrays:
        """Start every member with its seed and return the observations."""

    @abstractmethod
    def step(self, actions: Array) -> Outcome:
        """Step every member."""

    @abstractmethod
    def get_state(self) -> list[dict[str, Any]]:
        """Return each member's record."""

    @abstractmethod
    def set_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from each member's record."""

    @abstractmethod
    def render(self) -> Array | None:
        """Return the picture of the first member."""

    @abstractmethod
    def instruct(self, instruction: Instruction) -> bool:
        """Pass a person's word on to every member; return whether one of them listens."""

    @abstractmethod
    def close(self) -> None:
        """Free what the members hold."""


class SyncBackend(Backend):
    """All members in this process, one after another."""

    def __init__(self, blueprint: Blueprint, num_envs: int) -> None:
        self._observation, self._num_envs = blueprint.observation, num_envs
        self._group = Group(blueprint, 0, num_envs)
        self._latest = self._observation.empty(num_envs)
        self._finals = self._observation.empty(num_envs)
        self._num_infos = len(blueprint.info_keys)

    def reset(self, seeds: Sequence[int]) -> Arrays:
        """Start every member with its seed and return the observations."""
        self._latest = self._observation.empty(self._num_envs)
        self._group.reset(seeds, self._latest)
        return self._latest

    def step(self, actions: Array) -> Outcome:
        """Step every member, writing straight into the arrays that are returned."""
        num = self._num_envs
        obs = self._latest = self._observation.empty(num)
        rewards, terminated, truncated = np.empty(num, np.float32), np.zeros(num, np.bool_), np.zeros(num, np.bool_)
        infos = np.empty((self._num_infos, num), np.float32)
        has_ended = self._group.step(actions, StepArrays(obs, rewards, terminated, truncated, self._finals, infos))
        finals = merge_finals(obs, self._finals, terminated | truncated) if has_ended else None
        return Outcome(obs, rewards, terminated, truncated, finals, infos)

    def get_state(self) -> list[dict[str, Any]]:
        """Return each member's record."""
        return self._group.get_state(self._latest)

    def set_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from each member's record."""
        self._latest = self._observation.empty(self._num_envs)
        self._group.set_state(states, self._latest)

    def render(self) -> Array | None:
        """Return the picture of the first member."""
        return self._group.render()

    def instruct(self, instruction: Instruction) -> bool:
        """Pass a person's word on to every member."""
        return self._group.instruct(instruction)

    def close(self) -> None:
        """Free what the members hold."""
        self._group.close()


def merge_finals(observations: Arrays, finals: Arrays, ended: Array) -> Arrays:
    """Return `observations` with the rows of ended episodes taken from `finals`, as new arrays."""
    merged = {name: array.copy() for name, array in observations.items()}
    for name, array in merged.items():
        array[ended] = finals[name][ended]
    return merged
