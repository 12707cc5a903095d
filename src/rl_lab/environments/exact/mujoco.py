"""The state of gymnasium's MuJoCo environments: every array of MjData that outlives a step.

The integration state alone would bring back the motion, but Ant and Humanoid take the reward of the next step from
positions that the last one left behind. All arrays in MuJoCo's buffer are kept, 4 to 31 kB; the contacts and
constraints in its arena are not, since a step begins by computing them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.environments.exact.adapter import Adapter, LayerState
from rl_lab.environments.hosting.foreign import BadOutcome

_FILES = {
    "ant": "AntEnv",
    "half_cheetah": "HalfCheetahEnv",
    "hopper": "HopperEnv",
    "humanoid": "HumanoidEnv",
    "humanoidstandup": "HumanoidStandupEnv",
    "inverted_double_pendulum": "InvertedDoublePendulumEnv",
    "inverted_pendulum": "InvertedPendulumEnv",
    "pusher": "PusherEnv",
    "reacher": "ReacherEnv",
    "swimmer": "SwimmerEnv",
    "walker2d": "Walker2dEnv",
}


def read(env: Any) -> LayerState:
    """Return the arrays of the simulation, joined by type; `fields` says which follow one another."""
    data = env.data
    arrays = _arrays(data)
    state: LayerState = {"time": float(data.time), "fields": _text(arrays)}
    for kind in _kinds(arrays):
        state[kind] = np.concatenate([array.ravel() for array in arrays.values() if array.dtype.name == kind])
    return state


def write(env: Any, state: Mapping[str, Any]) -> None:
    """Put the arrays back."""
    data = env.data
    arrays = _arrays(data)
    if _text(arrays) != state["fields"]:
        raise BadOutcome("cannot be restored: the stored state is of another model or of another version of MuJoCo")
    data.time = state["time"]
    for kind in _kinds(arrays):
        chosen = [array for array in arrays.values() if array.dtype.name == kind]
        ends = np.cumsum([array.size for array in chosen])
        for array, part in zip(chosen, np.split(np.asarray(state[kind]), ends[:-1]), strict=True):
            array[...] = part.reshape(array.shape)


def fits(env: Any) -> bool:
    """Return whether the model keeps all it remembers in these arrays: no plugins, and no bodies that sleep."""
    import mujoco

    return env.model.nplugin == 0 and not env.model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP


def _arrays(data: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays in MuJoCo's buffer, which begins with qpos, as views by name."""
    first = data.qpos.ctypes.data
    found = {name: it.__get__(data) for name, it in vars(type(data)).items() if isinstance(it, property)}
    return {
        name: array
        for name, array in sorted(found.items())
        if isinstance(array, np.ndarray) and array.size and 0 <= array.ctypes.data - first < data.nbuffer
    }


def _text(arrays: Mapping[str, NDArray[Any]]) -> str:
    return " ".join(f"{name}:{array.size}" for name, array in arrays.items())


def _kinds(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    return sorted({array.dtype.name for array in arrays.values()})


ADAPTERS = {
    f"gymnasium.envs.mujoco.{file}_v{version}.{kind}": Adapter(read, write, fits)
    for file, kind in _FILES.items()
    for version in (4, 5)
}
