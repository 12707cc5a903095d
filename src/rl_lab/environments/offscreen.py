"""Pictures of a MuJoCo simulation, drawn off the screen. Knows no torch, so that worker processes start light."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from rl_lab.environments.hosting.foreign import environment_fault

OFFSCREEN = ("egl", "osmesa")  # what is tried where there is no display
MAX_GEOMS = 10_000


class Canvas:
    """Draws one model through its cameras; OpenGL is only touched at the first picture."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self._context: Any = None
        self._canvas: Any = None
        self._size = (0, 0)

    def draw(self, data: mujoco.MjData, camera: str | None, height: int, width: int) -> NDArray[np.uint8]:
        """Return what a camera sees, [H, W, 3]; None is MuJoCo's own view. Positions in `data` must be up to date."""
        if self._size != (width, height):
            self._open(width, height)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._eye(camera), everything, self._scene)
        self._context.make_current()
        view, picture = mujoco.MjrRect(0, 0, width, height), np.empty((height, width, 3), np.uint8)
        mujoco.mjr_render(view, self._scene, self._canvas)
        mujoco.mjr_readPixels(picture, None, view, self._canvas)
        return np.flipud(picture).copy()

    def close(self) -> None:
        """Free the context."""
        if self._canvas is not None:
            self._context.make_current()  # else the objects of another canvas would be freed
        for part in (self._canvas, self._context):
            if part is not None:
                part.free()
        self._canvas, self._context, self._size = None, None, (0, 0)

    def _open(self, width: int, height: int) -> None:
        """Make a context of this size, and all that is drawn with."""
        self.close()
        self._context = new_context(width, height)
        self._context.make_current()
        try:
            self._canvas = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100)
        except mujoco.FatalError as error:
            raise environment_fault(f"no OpenGL to draw with ({' '.join(str(error).split())[:80]})") from error
        mujoco.mjr_resizeOffscreen(width, height, self._canvas)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._canvas)
        self._scene = mujoco.MjvScene(self._model, maxgeom=MAX_GEOMS)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = 0
        self._option = mujoco.MjvOption()
        self._size = (width, height)

    def _eye(self, camera: str | None) -> mujoco.MjvCamera:
        eye = mujoco.MjvCamera()
        if camera is None:
            mujoco.mjv_defaultFreeCamera(self._model, eye)
        else:
            eye.type, eye.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, self._model.camera(camera).id
        return eye


def has_display() -> bool:
    """Return whether a window could be opened."""
    return sys.platform in ("darwin", "win32") or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def new_context(width: int, height: int) -> Any:
    """Return an OpenGL context: the one MUJOCO_GL names, else a window's where there is a display, else off-screen."""
    wanted = os.environ.get("MUJOCO_GL", "")
    names = (wanted,) if wanted in (*OFFSCREEN, "glfw") else ("glfw",) if has_display() else OFFSCREEN
    failures = []
    for name in names:
        if name == "glfw" and not has_display():  # glfw itself would only warn, and draw nothing
            failures.append("glfw: there is no display")
            continue
        try:
            return importlib.import_module(f"mujoco.{name}").GLContext(width, height)
        except (ImportError, AttributeError, RuntimeError, OSError) as error:  # what PyOpenGL raises without a library
            failures.append(f"{name}: {' '.join(str(error).split())[:80]}")
    raise environment_fault(f"no OpenGL to draw with ({'; '.join(failures)}): install libegl1 or libosmesa6")
