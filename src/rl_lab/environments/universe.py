"""Softlearning's `universe/domain/task` names, e.g. `gym/HalfCheetah/v3` or `dm_control/cartpole/swingup`.

A retired version stands for its successor: v0 to v3 of the MuJoCo domains for v5, `gym/Pendulum/v0` for `Pendulum-v1`.
Their observations and rewards differ in details that gymnasium's own pages list.
"""

from __future__ import annotations

import re

from gymnasium.envs.registration import find_highest_version, registry

from rl_lab.core import ConfigError, unknown_name

UNIVERSES = ("gym", "dm_control")
TENSOR_DOMAINS = {"MultiGoal": "environment=multigoal"}  # not host environments here, but configs of their own
MUJOCO_DOMAINS = (
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
    *("Pusher", "Reacher", "Swimmer", "Walker2d"),
)
# v2 and v3 need the retired mujoco-py; v5 takes all that Parameterizable-v3 did as env_kwargs
_OLD_MUJOCO = re.compile(r"(Parameterizable-)?v[0-3]")


def is_universe_name(name: str) -> bool:
    """Return whether a name has the three parts; an id of gymnasium has at most two."""
    return ":" not in name and name.count("/") == 2


def translate(name: str) -> str:
    """Return the lab's name of `universe/domain/task`; raises ConfigError with the choices."""
    universe, domain, task = name.split("/")
    if universe not in UNIVERSES:
        raise ConfigError(f"environment.name {name!r}: " + unknown_name("universe", universe, UNIVERSES))
    if universe == "dm_control":
        return f"dm_control/{domain}-{task}"
    if domain in TENSOR_DOMAINS:
        config = TENSOR_DOMAINS[domain]
        raise ConfigError(f"environment.name {name!r} is a batch of tensors here: choose {config} instead")
    if domain in MUJOCO_DOMAINS and _OLD_MUJOCO.fullmatch(task):
        return f"{domain}-v5"
    return _newest(domain, task)


def _newest(domain: str, task: str) -> str:
    """Return the id, or the domain's newest version when the one asked for is retired (`Pendulum-v0`)."""
    asked, newest = f"{domain}-{task}", find_highest_version(None, domain)
    if asked in registry or newest is None or not re.fullmatch(r"v\d+", task) or int(task[1:]) > newest:
        return asked
    return f"{domain}-v{newest}"
