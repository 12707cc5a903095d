"""The base of wrappers that change an observation, or some entries of a dict observation, by themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.wrappers.base import LabWrapper, Outcome, describe_space, unknown_choice

WHOLE = ""  # the key of an observation that is not a dict
ACTION_MASK = "action_mask"


class EntryWrapper(LabWrapper):
    """Converts the chosen arrays of every observation; a subclass says which fit and what becomes of them."""

    name: str  # in the config
    needs: str  # what a fitting entry is, for the error message

    def __init__(self, env: gymnasium.Env[Any, Any], keys: Sequence[str] | None) -> None:
        super().__init__(env)
        space = env.observation_space
        self._entries = self._choose(space, keys)
        changed = {key: self.change_space(key, entry) for key, entry in self._entries.items()}
        if WHOLE in changed:
            self.observation_space = changed[WHOLE]
        else:
            assert isinstance(space, spaces.Dict)
            self.observation_space = spaces.Dict({**space.spaces, **changed})

    @abstractmethod
    def fits(self, space: spaces.Box) -> bool:
        """Return whether this entry can be changed."""

    @abstractmethod
    def change_space(self, key: str, space: spaces.Box) -> spaces.Box:
        """Return what the entry's space becomes."""

    @abstractmethod
    def change(self, key: str, value: NDArray[Any], *, is_first: bool) -> NDArray[Any]:
        """Return what the entry's value becomes, as a new array."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Change the first observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._changed(obs, is_first=True), info

    def step(self, action: Any) -> Outcome:
        """Change the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._changed(obs, is_first=False), reward, terminated, truncated, info

    def _changed(self, obs: Any, *, is_first: bool) -> Any:
        if WHOLE in self._entries:
            return self.change(WHOLE, np.asarray(obs), is_first=is_first)
        changed = {key: self.change(key, np.asarray(obs[key]), is_first=is_first) for key in self._entries}
        return {**obs, **changed}

    def _choose(self, space: spaces.Space[Any], keys: Sequence[str] | None) -> dict[str, spaces.Box]:
        if isinstance(space, spaces.Dict):
            entries: dict[str, Any] = {key: space.spaces[key] for key in space.spaces if key != ACTION_MASK}
            for key in keys or ():
                if key not in entries:
                    raise unknown_choice(f"key of environment.wrappers.{self.name}", key, entries)
            chosen = {key: entry for key, entry in entries.items() if self._is_chosen(key, entry, keys)}
        else:
            chosen = {WHOLE: space} if keys is None and self._is_chosen(WHOLE, space, None) else {}
        if not chosen or len(chosen) < len(set(keys or ())):
            raise config_error(f"environment.wrappers.{self.name} needs {self.needs}, not {describe_space(space)}")
        return chosen

    def _is_chosen(self, key: str, entry: spaces.Space[Any], keys: Sequence[str] | None) -> bool:
        return (keys is None or key in keys) and isinstance(entry, spaces.Box) and self.fits(entry)
