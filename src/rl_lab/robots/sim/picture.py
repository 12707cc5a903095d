"""Pictures of one world, drawn by MuJoCo off the screen."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from rl_lab.core import EnvironmentFault

OFFSCREEN = ("egl", "osmesa")  # what is tried where there is no display
MAX_GEOMS = 10_000


class Painter:
    """Draws states of a model; OpenGL is only touched at the first picture."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        self._context: Any = None
        self._size = (0, 0)

    def draw(self, qpos: np.ndarray, width: int, height: int) -> Tensor:
        """Return the picture of a state through the camera "track", [H, W, 3] uint8."""
        if self._size != (width, height):
            self._open(width, height)
        model, data = self._model, self._data
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, self._option, None, self._camera, everything, self._scene)
        self._context.make_current()
        view, picture = mujoco.MjrRect(0, 0, width, height), np.empty((height, width, 3), np.uint8)
        mujoco.mjr_render(view, self._scene, self._canvas)
        mujoco.mjr_readPixels(picture, None, view, self._canvas)
        return torch.from_numpy(np.flipud(picture).copy())

    def _open(self, width: int, height: int) -> None:
        """Make a context of this size, and all that is drawn with."""
        self.close()
        self._context = new_context(width, height)
        self._context.make_current()
        self._canvas = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_resizeOffscreen(width, height, self._canvas)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._canvas)
        self._scene = mujoco.MjvScene(self._model, maxgeom=MAX_GEOMS)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = 0
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        tracking = [i for i in range(self._model.ncam) if self._model.camera(i).name == "track"]
        if tracking:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, tracking[0]
        else:
            mujoco.mjv_defaultFreeCamera(self._model, self._camera)
        self._size = (width, height)

    def close(self) -> None:
        """Free the context."""
        if self._context is not None:
            self._canvas.free()
            self._context.free()
            self._context, self._size = None, (0, 0)


def has_display() -> bool:
    """Return whether a window could be opened."""
    return sys.platform in ("darwin", "win32") or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def new_context(width: int, height: int) -> Any:
    """Return an OpenGL context: the one MUJOCO_GL names, else a window's where there is a display, else off-screen."""
    wanted = os.environ.get("MUJOCO_GL", "")
    names = (wanted,) if wanted in (*OFFSCREEN, "glfw") else ("glfw",) if has_display() else OFFSCREEN
    failures = []
    for name in names:
        try:
            return importlib.import_module(f"mujoco.{name}").GLContext(width, height)
        except (ImportError, AttributeError, RuntimeError, OSError) as error:  # what PyOpenGL raises without a library
            failures.append(f"{name}: {' '.join(str(error).split())[:80]}")
    raise EnvironmentFault(f"no OpenGL to draw with ({'; '.join(failures)}): install libegl1 or libosmesa6")
