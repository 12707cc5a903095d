"""What simulated robots share: a MuJoCo model stepped at the rate of control, cameras and exact state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from rl_lab.environments.offscreen import Canvas
from rl_lab.human.cell.driver import Array, Layout, SimulatedDriver

WHOLE = mujoco.mjtState.mjSTATE_INTEGRATION  # all that the next step depends on, commands and mocap bodies included


class Simulation(SimulatedDriver):
    """A driver of a MuJoCo model: `_arrange` sets the scene, `_command` turns a command into controls.

    Args:
        xml: The model.
        layout: What the robot takes and shows.
    """

    def __init__(self, xml: str, layout: Layout) -> None:
        self.layout = layout
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)
        self._substeps = round(1.0 / (layout.steps_per_second * self.model.opt.timestep))
        self._canvases: dict[tuple[int, int], Canvas] = {}  # one for each size of pictures
        self._state = np.empty(mujoco.mj_stateSize(self.model, WHOLE))

    @abstractmethod
    def _arrange(self, rng: np.random.Generator) -> None:
        """Set positions and controls for the start of an episode, on data that is at its default."""

    @abstractmethod
    def _command(self, command: Array) -> None:
        """Set the controls."""

    def reset(self, rng: np.random.Generator) -> None:
        """Bring the scene to a random start."""
        mujoco.mj_resetData(self.model, self.data)
        self._arrange(rng)
        mujoco.mj_kinematics(self.model, self.data)

    def act(self, command: Array) -> None:
        """Simulate one control step."""
        self._command(command)
        mujoco.mj_step(self.model, self.data, self._substeps)
        mujoco.mj_kinematics(self.model, self.data)  # a step leaves positions of bodies as they were before it

    def draw(self, camera: str, height: int, width: int) -> Array:
        """Return the picture of a camera, [H, W, 3]."""
        mujoco.mj_kinematics(self.model, self.data)  # after a restore
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        canvas = self._canvases.setdefault((height, width), Canvas(self.model))
        return canvas.draw(self.data, camera, height, width)

    def get_state(self) -> dict[str, Any]:
        """Return the simulator's state as one array."""
        mujoco.mj_getState(self.model, self.data, self._state, WHOLE)
        return {"simulation": self._state.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        mujoco.mj_setState(self.model, self.data, np.asarray(state["simulation"], np.float64), WHOLE)
        mujoco.mj_kinematics(self.model, self.data)

    def place(self, numbers: Mapping[str, Array]) -> None:
        """Bring robot and scene to where `observe` gave these numbers."""
        mujoco.mj_resetData(self.model, self.data)
        self._place({name: np.asarray(values, np.float64) for name, values in numbers.items()})
        mujoco.mj_kinematics(self.model, self.data)

    @abstractmethod
    def _place(self, numbers: Mapping[str, Array]) -> None:
        """Set positions and controls by what was observed, on data that is at its default."""

    def close(self) -> None:
        """Free what it draws with."""
        for canvas in self._canvases.values():
            canvas.close()
