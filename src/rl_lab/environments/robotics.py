"""Goal-conditioned robots (Plappert et al., 2018): Fetch arms and Shadow hands of gymnasium-robotics.

Names are its ids that run on the maintained bindings of MuJoCo: `FetchReach-v4`, `FetchPushDense-v4`, `HandReach-v3`.
Observations are dicts of `observation`, `achieved_goal` and `desired_goal`. The reward is 0 where the goal is reached
(Fetch: within 5 cm) and -1 elsewhere, or minus the distance in the `Dense` ones; `info["is_success"]` tells the same.
Knows no torch, so that worker processes start light.
"""

from __future__ import annotations

import contextlib
import copy
import io
from typing import Any

import gymnasium

from rl_lab.environments.exact import mujoco
from rl_lab.environments.hosting.family_options import unknown_task
from rl_lab.environments.hosting.foreign import load_package
from rl_lab.environments.wrappers.base import LabWrapper

PACKAGE = "gymnasium_robotics"
HOMES = (f"{PACKAGE}.envs.fetch.", f"{PACKAGE}.envs.shadow_dexterous_hand.")
RETIRED = ":MujocoPy"  # how the entry points of ids begin that need mujoco-py


def make_env(name: str, *, max_episode_steps: int | None = None, **env_kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return a Fetch or Hand task.

    Args:
        name: Of the task.
        max_episode_steps: Env steps after which an episode is truncated; null: 50, of HandManipulate 100.
        env_kwargs: Further arguments of the task, e.g. reward_type (sparse, dense), render_mode, width or height.
    """
    load_package("mujoco", name, "robotics")
    with contextlib.redirect_stderr(io.StringIO()):  # where it writes news about other tasks of the package
        load_package(PACKAGE, name, "robotics")  # which registers its ids
    names = task_names()
    if name not in names:
        raise unknown_task(name, names)
    _mend_joint_access(load_package(f"{PACKAGE}.utils.mujoco_utils", name, "robotics"))
    spec = copy.deepcopy(gymnasium.spec(name))
    spec.order_enforce = False  # the lab resets before it steps
    env: gymnasium.Env[Any, Any] = gymnasium.make(
        spec, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs
    )
    return env if env.render_mode is None else OnlyLooking(env)


class OnlyLooking(LabWrapper):
    """Draws without a trace: the tasks compute the simulation anew to show the goal, which some steps would notice."""

    def render(self) -> Any:
        """Return what the task draws, with the simulation as it was before."""
        base: Any = self.unwrapped
        before = mujoco.read(base)
        picture = self.env.render()
        mujoco.write(base, before)
        return picture


def task_names() -> list[str]:
    """Return the names of the tasks, once the package is imported."""
    entry_points = {name: str(spec.entry_point) for name, spec in gymnasium.registry.items()}
    return [name for name, entry in entry_points.items() if entry.startswith(HOMES) and RETIRED not in entry]


def _mend_joint_access(utils: Any) -> None:
    """Let the package read and write joints by MuJoCo's own names.

    Up to 1.4.2 its functions assert that the type of a joint, a NumPy integer, is among some enums; since MuJoCo 3.12
    those are equal to Python's integers only, and no robot could be made.
    """
    utils.get_joint_qpos, utils.set_joint_qpos = _get_position, _set_position
    utils.get_joint_qvel, utils.set_joint_qvel = _get_velocity, _set_velocity


def _get_position(model: Any, data: Any, name: str) -> Any:
    return data.joint(name).qpos.copy()


def _get_velocity(model: Any, data: Any, name: str) -> Any:
    return data.joint(name).qvel.copy()


def _set_position(model: Any, data: Any, name: str, value: Any) -> None:
    data.joint(name).qpos[:] = value


def _set_velocity(model: Any, data: Any, name: str, value: Any) -> None:
    data.joint(name).qvel[:] = value
