"""Where a reset puts a world: the keyframe "home" with actuators that have been told so all along."""

from __future__ import annotations

import mujoco
import numpy as np


def home_key(model: mujoco.MjModel) -> int:
    """Return the number of the keyframe "home", -1 when there is none."""
    names = [model.key(i).name for i in range(model.nkey)]
    return names.index("home") if "home" in names else -1


def home_data(model: mujoco.MjModel) -> mujoco.MjData:
    """Return the state after a reset; delayed actuators remember the home controls, not zeros."""
    data = mujoco.MjData(model)
    if home_key(model) >= 0:
        mujoco.mj_resetDataKeyframe(model, data, home_key(model))
    for i in range(model.nu):
        samples = int(model.actuator_history[i, 0])
        if samples:
            mujoco.mj_initCtrlHistory(model, data, i, None, np.full(samples, data.ctrl[i]))
    return data
