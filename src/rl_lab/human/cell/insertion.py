"""Reach and insert: an arm that holds a peg brings it into a hole, `cell/Insertion-v0`. Small enough for CI.

The arm's own controller moves the tool in space; here it is a gantry of three slides with limited force. The peg is
20 mm wide and the hole 23 mm: up to 2.5 mm beside it the peg slips in over the edge, at 3 mm it stands on the rim.
Lengths are observed in decimetres, so that numbers are of the order of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_lab.environments.hosting.family_options import check_at_least
from rl_lab.human.cell.driver import Array, Layout
from rl_lab.human.cell.env import SimulatedCellEnv
from rl_lab.human.cell.simulation import Simulation

NAME = "cell/Insertion-v0"
DECIMETRES = 10.0  # in a metre
SPEED = 0.01  # metres of a control step at an action of 1
LEASH = 0.02  # metres that the target may be ahead of the tool: contact forces stay below STIFFNESS times this
STIFFNESS, DAMPING, FORCE = 1000.0, 45.0, 25.0  # N/m, N s/m, N
PEG = 0.010  # half of its width, metres
TOP, DEPTH = 0.03, 0.02  # height of the block with the hole; how deep the peg must be
REACH_LOW, REACH_HIGH = np.array([-0.15, -0.15, 0.002]), np.array([0.15, 0.15, 0.20])
HOLE_SPREAD, START_SPREAD, START_HEIGHT = 0.06, 0.10, (0.08, 0.16)
DIRECTIONS = {"x": "1 0 0", "y": "0 1 0", "z": "0 0 1"}
AXES = tuple(DIRECTIONS)


def make_env(name: str, *, clearance: float = 0.0015, **env_kwargs: Any) -> SimulatedCellEnv:
    """Return the task.

    Args:
        name: Of the task.
        clearance: Metres between peg and hole on each side.
        env_kwargs: Options of `CellEnv`; max_episode_steps is 100.
    """
    check_at_least("clearance", clearance, 0.0002)
    return SimulatedCellEnv(InsertionCell(clearance), name, **{"max_episode_steps": 100, **env_kwargs})


class InsertionCell(Simulation):
    """A command moves the target of the tool, x, y and z, by up to 1 cm.

    `state` is the tip of the peg, its velocity and how far the target is ahead of it (which tells contact forces);
    `objects` is where the mouth of the hole lies from the tip.

    Args:
        clearance: Metres between peg and hole on each side.
    """

    def __init__(self, clearance: float = 0.0015) -> None:
        state = [f"{kind}.{axis}" for kind in ("tip", "velocity", "ahead") for axis in AXES]
        layout = Layout(
            actions=tuple(f"move.{axis}" for axis in AXES),
            low=np.full(3, -1.0),
            high=np.full(3, 1.0),
            max_step=np.full(3, np.inf),
            numbers={"state": tuple(state), "objects": tuple(f"hole.{axis}" for axis in AXES)},
            cameras=("cam_high", "cam_wrist"),
            prompt="insert the peg into the hole",
            measured={f"move.{axis}": f"tip.{axis}" for axis in AXES},
            unit=DECIMETRES * SPEED,
            is_change=True,
            pose_low=REACH_LOW - SPEED,
            pose_high=REACH_HIGH + SPEED,
        )
        super().__init__(_model(PEG + clearance), layout)
        self._clearance = clearance

    def home(self) -> Array:
        """Return no movement."""
        return np.zeros(3)

    def hold(self) -> None:
        """Let the target be where the tool is."""
        self.data.ctrl[:] = self.data.qpos

    def observe(self) -> dict[str, Array]:
        """Return where tip, target and hole are, in decimetres."""
        tip, velocity = self.data.qpos, self.data.qvel
        state = DECIMETRES * np.concatenate([tip, velocity, self.data.ctrl - tip])
        return {"state": state.astype(np.float32), "objects": (DECIMETRES * self._way()).astype(np.float32)}

    def is_success(self) -> bool:
        """Return whether the tip is deep in the hole."""
        way = self._way()
        return bool(way[2] >= DEPTH and np.abs(way[:2]).max() <= 2.0 * self._clearance)

    def pose(self, command: Array) -> Array:
        """Return where the tool would be sent: the gantry stops at its ends, a step beyond them is a mistake."""
        tip: Array = self.data.qpos
        return np.clip(self.data.ctrl + SPEED * command, tip - LEASH, tip + LEASH)

    def _way(self) -> Array:
        """Return where the mouth of the hole lies from the tip, metres."""
        return self.data.mocap_pos[0] + (0.0, 0.0, TOP) - self.data.qpos

    def _arrange(self, rng: np.random.Generator) -> None:
        self.data.mocap_pos[0, :2] = rng.uniform(-HOLE_SPREAD, HOLE_SPREAD, 2)
        self.data.qpos[:2] = rng.uniform(-START_SPREAD, START_SPREAD, 2)
        self.data.qpos[2] = rng.uniform(*START_HEIGHT)
        self.hold()

    def _place(self, numbers: Mapping[str, Array]) -> None:
        tip, velocity, ahead = (numbers["state"] / DECIMETRES).reshape(3, 3)
        self.data.qpos[:], self.data.qvel[:], self.data.ctrl[:] = tip, velocity, tip + ahead
        if "objects" in numbers:
            self.data.mocap_pos[0, :2] = (tip + numbers["objects"] / DECIMETRES)[:2]

    def _command(self, command: Array) -> None:
        self.data.ctrl[:] = np.clip(self.pose(command), REACH_LOW, REACH_HIGH)


def _model(hole: float) -> str:
    """Return the scene; `hole` is half of the hole's width, metres."""
    wall, half = 0.02, TOP / 2.0  # half of the thickness of a wall, half of its height
    out, across = hole + wall, hole + 2.0 * wall
    walls = "".join(
        f'<geom class="wall" pos="{x} {y} {half}" size="{a} {b} {half}"/>'
        for x, y, a, b in ((out, 0, wall, across), (-out, 0, wall, across), (0, out, hole, wall), (0, -out, hole, wall))
    )
    slides = "".join(f'<joint name="{n}" type="slide" axis="{a}"/>' for n, a in DIRECTIONS.items())
    motors = "".join(
        f'<position joint="{n}" kp="{STIFFNESS}" kv="{DAMPING}" forcerange="-{FORCE} {FORCE}"/>' for n in AXES
    )
    return f"""<mujoco>
<option timestep="0.005" integrator="implicitfast" cone="elliptic"/>
<visual><global offwidth="640" offheight="480"/><quality shadowsize="0" offsamples="0"/></visual>
<default>
 <geom contype="0" conaffinity="0" friction="0.4"/>
 <default class="wall"><geom type="box" conaffinity="1" rgba=".3 .5 .8 1"/></default>
</default>
<worldbody>
 <light pos="0 0 2" dir="0 0 -1" castshadow="false" ambient=".4 .4 .4"/>
 <camera name="cam_high" pos="0 -.32 .36" xyaxes="1 0 0 0 .7 .71" fovy="52"/>
 <geom type="plane" size=".4 .4 .1" conaffinity="1" rgba=".7 .7 .65 1"/>
 <body name="hole" mocap="true">{walls}</body>
 <body name="tool" gravcomp="1">{slides}
  <geom type="box" contype="1" pos="0 0 .03" size="{PEG} {PEG} .03" mass=".4" rgba=".9 .4 .1 1"/>
  <geom type="cylinder" pos="0 0 .09" size=".02 .03" mass=".1" rgba=".2 .2 .2 1"/>
  <camera name="cam_wrist" pos="0 -.09 .1" xyaxes="1 0 0 0 .62 .78" fovy="75"/>
 </body>
</worldbody>
<actuator>{motors}</actuator>
</mujoco>"""
