"""The exact state of a dm_control task: simulator, model, task and step counter, as named arrays. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.environments.exact.adapter import has_plain_form, plain, unplain

# What no episode changes and what fills the memory: the geometry and pictures that a model is drawn with.
CONSTANT = ("mesh_", "tex_", "skin_", "bvh_", "oct_", "flex", "names", "paths", "text_")

Array = NDArray[Any]


class SimulatorState:
    """Reads and writes the running episode of a `dm_control.rl.control.Environment`.

    MuJoCo's integration state is all of the simulator's memory; what it derives from it is computed again by the first
    half of a step, which is where the suite stops between two steps. Many tasks place targets or change sizes, gains
    and terrain in the model itself: those fields differ from the model as it was loaded, and are saved.
    """

    def __init__(self, dm: Any) -> None:
        self._dm = dm
        self._fields = dict(_arrays(dm.physics.model.ptr))
        self._loaded = {name: field.copy() for name, field in self._fields.items()}

    @property
    def is_whole(self) -> bool:
        """Return whether all that the task remembers has a plain form; otherwise an episode must be replayed."""
        return all(has_plain_form(value) for _, value in self._memory())

    def get(self) -> dict[str, Any]:
        """Return plain numbers, strings and arrays."""
        import mujoco

        model, data = self._dm.physics.model.ptr, self._dm.physics.data.ptr
        simulator = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(model, data, simulator, mujoco.mjtState.mjSTATE_INTEGRATION)
        kind, keys, position, has_gauss, cached = self._dm.task.random.get_state(legacy=True)
        return {
            "simulator": simulator,
            "model": {name: field.copy() for name, field in self._fields.items() if self._is_changed(name)},
            "task": {name: plain(value) for name, value in self._memory()},
            "random": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
            "step_count": self._dm._step_count,
            "reset_next_step": self._dm._reset_next_step,
        }

    def set(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get` returned."""
        import mujoco

        physics, random = self._dm.physics, state["random"]
        for name, field in self._fields.items():
            field[...] = state["model"].get(name, self._loaded[name])
        simulator = np.asarray(state["simulator"], dtype=np.float64)
        mujoco.mj_setState(physics.model.ptr, physics.data.ptr, simulator, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_step1(physics.model.ptr, physics.data.ptr)
        for name, value in state["task"].items():
            setattr(self._dm.task, name, unplain(value))
        keys = np.asarray(random["keys"], dtype=np.uint32)
        cached = (int(random["has_gauss"]), float(random["cached"]))
        self._dm.task.random.set_state((random["kind"], keys, int(random["position"]), *cached))
        self._dm._step_count = int(state["step_count"])
        self._dm._reset_next_step = bool(state["reset_next_step"])
        if "hfield_data" in state["model"]:
            self._upload_terrain()

    def _memory(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes of the task; its random stream has a state of its own."""
        task = self._dm.task
        return ((name, value) for name, value in vars(task).items() if value is not task.random)

    def _is_changed(self, name: str) -> bool:
        return self._fields[name].tobytes() != self._loaded[name].tobytes()

    def _upload_terrain(self) -> None:
        """Hand changed heights to what draws; the only part of a model that is copied there once."""
        import mujoco

        physics = self._dm.physics
        with physics.contexts.gl.make_current() as context:
            for index in range(physics.model.nhfield):
                context.call(mujoco.mjr_uploadHField, physics.model.ptr, physics.contexts.mujoco.ptr, index)


def _arrays(model: Any) -> Iterator[tuple[str, Array]]:
    for name in dir(model):
        if not name.startswith(("_", *CONSTANT)):
            value = getattr(model, name)
            if isinstance(value, np.ndarray) and value.size:
                yield name, value
