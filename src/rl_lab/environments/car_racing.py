"""`CarRacing-fast`: physics, tracks and rewards of gymnasium's CarRacing-v3 with a picture that is sampled, not drawn.

Knows no torch, so that worker processes start light.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

from rl_lab.environments.hosting.foreign import load_package, unknown_environment

NAME = "CarRacing-fast"


def make_env(name: str, *, max_episode_steps: int = 1000, **env_kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return the environment, truncated as CarRacing-v3 is; `env_kwargs` are the options of `FastCarRacing`."""
    if name != NAME:
        raise unknown_environment(name, [NAME, "CarRacing-v3"])
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Box2D and pygame, while they are imported
        load_package("gymnasium.envs.box2d.car_racing", name, "box2d")
        from rl_lab.environments.racing.env import FastCarRacing
    return TimeLimit(FastCarRacing(**env_kwargs), max_episode_steps=max_episode_steps)
