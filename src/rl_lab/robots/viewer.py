"""MuJoCo's interactive window on the first world of a robot task, in real time."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import mujoco

from rl_lab.core import EnvironmentFault
from rl_lab.core.pace import Pace
from rl_lab.robots.legged_env import LeggedEnv


class Viewer:
    """A window that shows and never changes what happens; the mouse moves its camera.

    Args:
        env: The task.
        on_key: Called with GLFW's number of each key that is pressed in the window.
    """

    def __init__(self, env: LeggedEnv, on_key: Callable[[int], None] | None = None) -> None:
        self._sim, self._pace = env.world.sim, Pace(env.world.facts.dt)
        self._model = env.world.sim.model
        self._data = mujoco.MjData(self._model)
        self._window = _open(self._model, self._data, on_key)

    def show(self) -> bool:
        """Draw the present state, wait for the next control step, and return whether the window is still open."""
        if not self._window.is_running():
            return False
        with self._window.lock():
            self._data.qpos[:] = self._sim.read("qpos")[0].cpu().numpy()
            self._data.qvel[:] = self._sim.read("qvel")[0].cpu().numpy()
            mujoco.mj_forward(self._model, self._data)
        self._window.sync()
        return self._pace.wait()

    def close(self) -> None:
        """Close the window."""
        self._window.close()


def _open(model: mujoco.MjModel, data: mujoco.MjData, on_key: Callable[[int], None] | None) -> Any:
    _check_display()
    import mujoco.viewer  # looks for a window system

    try:
        return mujoco.viewer.launch_passive(model, data, key_callback=on_key, show_left_ui=False, show_right_ui=False)
    except (RuntimeError, mujoco.FatalError) as error:
        raise _fault(error) from error


def _check_display() -> None:
    """Refuse a display that is named and not there: MuJoCo's own thread would end the whole process."""
    if sys.platform == "darwin":  # there only the program mjpython may open windows, which MuJoCo tells itself
        return
    glfw = importlib.import_module("glfw")
    with warnings.catch_warnings():
        warnings.simplefilter("error", glfw.GLFWError)
        try:
            glfw.init()
        except glfw.GLFWError as error:
            raise _fault(error) from error


def _fault(error: BaseException) -> EnvironmentFault:
    reason = " ".join(str(error).split())
    return EnvironmentFault(f"the viewer cannot open a window ({reason}); --video needs none")
