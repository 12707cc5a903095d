"""The tasks of the simulated robot cell by name, `cell/Insertion-v0` and `cell/PickAndPlace-v0`. Knows no torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium

from rl_lab.environments.hosting.family_options import unknown_task
from rl_lab.environments.hosting.foreign import load_package

TASKS = {  # name -> module with `make_env`
    "cell/Insertion-v0": "rl_lab.human.cell.insertion",
    "cell/PickAndPlace-v0": "rl_lab.human.cell.pick_and_place",
}


def make_env(name: str, **env_kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return a task; `env_kwargs` are the options of its own `make_env` and of `CellEnv`."""
    if name not in TASKS:
        raise unknown_task(name, TASKS)
    load_package("mujoco", name, "mujoco")
    env: gymnasium.Env[Any, Any] = import_module(TASKS[name]).make_env(name, **env_kwargs)
    return env
