"""A wrapper that gives names to parts of an observation, so that some may be hidden from a student. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.wrappers.base import LabWrapper, Outcome, describe_space


class ObservationParts(LabWrapper):
    """Shows a list of numbers as a dict of parts of it, which may overlap.

    Args:
        parts: Name of a part -> numbers of its entries, from 0 on; null: all of them.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, parts: Mapping[str, Sequence[int] | None]) -> None:
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise config_error(
                f"environment.wrappers.observation_parts needs a list of numbers, not {describe_space(space)}"
            )
        super().__init__(env)
        size = space.shape[0]
        self._parts = {name: _checked(name, entries, size) for name, entries in parts.items()}
        self.observation_space = spaces.Dict(
            {name: spaces.Box(space.low[i], space.high[i], dtype=space.dtype.type) for name, i in self._parts.items()}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Show the parts of the first observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._split(obs), info

    def step(self, action: Any) -> Outcome:
        """Show the parts of the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._split(obs), reward, terminated, truncated, info

    def _split(self, obs: Any) -> dict[str, Any]:
        return {name: np.asarray(obs)[entries] for name, entries in self._parts.items()}


def _checked(name: str, entries: Any, size: int) -> list[int]:
    """Return which entries a part has."""
    if entries is None:
        return list(range(size))
    is_list = isinstance(entries, Sequence) and not isinstance(entries, str) and len(entries) > 0
    if not is_list or not all(type(entry) is int and 0 <= entry < size for entry in entries):
        raise config_error(
            f"environment.wrappers.observation_parts: {name!r} must be a list of entries of 0 to {size - 1}, or "
            f"null, not {entries!r}"
        )
    return list(entries)
