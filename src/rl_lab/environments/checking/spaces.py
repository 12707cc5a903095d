"""Whether a gymnasium environment observes what its own observation space declares. Knows no torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_lab.environments.hosting.codec import MASK

STEPS = 300
SECONDS = 3.0


def space_misfit(env: gymnasium.Env[Any, Any], seed: int = 0) -> tuple[str | None, int]:
    """Step with random actions; return how an observation does not fit its space, and after how many steps."""
    env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    start = time.perf_counter()
    for step in range(STEPS):
        misfit = _misfit("observation", env.observation_space, obs)
        if misfit is not None or time.perf_counter() - start > SECONDS:
            return misfit, step
        obs, _, terminated, truncated, _ = env.step(_action(env, obs))
        if terminated or truncated:
            misfit = _misfit("last observation of an episode", env.observation_space, obs)
            if misfit is not None:
                return misfit, step + 1
            obs, _ = env.reset()
    return None, STEPS


def _action(env: gymnasium.Env[Any, Any], obs: Any) -> Any:
    is_masked = isinstance(env.action_space, spaces.Discrete) and isinstance(obs, Mapping) and MASK in obs
    return env.action_space.sample(np.asarray(obs[MASK], np.int8)) if is_masked else env.action_space.sample()


def _misfit(name: str, space: spaces.Space[Any], value: Any) -> str | None:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found = (_misfit(f"{name}[{key!r}]", part, value[key]) for key, part in parts)
        return next((text for text in found if text is not None), None)
    if not isinstance(space, spaces.Box):
        return None if space.contains(value) else f"{name} {_short(value)} is not in {space}"
    array = np.asarray(value)
    if array.shape != space.shape:
        return f"{name} has shape {array.shape}, its space {space.shape}"
    if np.issubdtype(space.dtype, np.integer) and not np.issubdtype(array.dtype, np.integer):
        return f"{name} is {array.dtype}, its space {space.dtype}"
    outside = (array < space.low) | (array > space.high)
    if not outside.any():
        return None
    index = tuple(int(i) for i in np.argwhere(outside)[0])
    bounds = f"{space.low[index]:g} .. {space.high[index]:g}"
    return f"{name}{list(index) or ''} is {array[index]:.6g}, outside {bounds} of its space"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
