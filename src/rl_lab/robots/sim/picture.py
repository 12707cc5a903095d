"""Pictures of one world, drawn by MuJoCo off the screen."""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from torch import Tensor

from rl_lab.environments.offscreen import Canvas


class Painter:
    """Draws states of a model through the camera "track"; OpenGL is only touched at the first picture."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model, self._data, self._canvas = model, mujoco.MjData(model), Canvas(model)
        names = [model.camera(index).name for index in range(model.ncam)]
        self._camera = "track" if "track" in names else None

    def draw(self, qpos: np.ndarray, width: int, height: int) -> Tensor:
        """Return the picture of a state, [H, W, 3] uint8."""
        model, data = self._model, self._data
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        return torch.from_numpy(self._canvas.draw(data, self._camera, height, width))

    def close(self) -> None:
        """Free the context."""
        self._canvas.close()
