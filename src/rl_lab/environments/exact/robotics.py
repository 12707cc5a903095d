"""The state of gymnasium-robotics' Fetch and Hand tasks: the simulation, mocap bodies included, and the goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_lab.environments.exact import mujoco
from rl_lab.environments.exact.adapter import Adapter, LayerState

_FETCH = {"reach": "Reach", "push": "Push", "slide": "Slide", "pick_and_place": "PickAndPlace"}
_HAND = {"reach": "HandReach"} | {
    f"manipulate_{thing.lower()}{file}": f"Hand{thing}{kind}"
    for thing in ("Block", "Egg", "Pen")
    for file, kind in (("", ""), ("_touch_sensors", "TouchSensors"))
}


def _read(env: Any) -> LayerState:
    return {"simulation": mujoco.read(env), "goal": env.goal.copy()}


def _write(env: Any, state: Mapping[str, Any]) -> None:
    mujoco.write(env, state["simulation"])
    env.goal = np.array(state["goal"])


_TYPES = (
    *(f"fetch.{file}.MujocoFetch{kind}Env" for file, kind in _FETCH.items()),
    *(f"shadow_dexterous_hand.{file}.Mujoco{kind}Env" for file, kind in _HAND.items()),
)
ADAPTERS = {f"gymnasium_robotics.envs.{kind}": Adapter(_read, _write, mujoco.fits) for kind in _TYPES}
