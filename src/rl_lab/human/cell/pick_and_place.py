"""Two arms put two objects into a box, `cell/PickAndPlace-v0`: 14 commands, three cameras, 10 Hz.

Names, shapes and rate are those of a Dobot X-Trainer as Hi-ORS (2025, arXiv 2510.26406) uses it, so that only the
driver changes. Everything is made of primitives, without shadows, so that a CPU draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from rl_lab.environments.hosting.family_options import check_within
from rl_lab.human.cell import arm
from rl_lab.human.cell.driver import Array, Layout
from rl_lab.human.cell.env import SimulatedCellEnv
from rl_lab.human.cell.simulation import Simulation

NAME = "cell/PickAndPlace-v0"
PROMPT = "put the objects in the box"
DECIMETRES = 10.0  # in a metre
IS_OPEN = 0.7  # of a gripper: more than it has with an object in it
PLACES = {"left": ((-0.32, -0.17), (-0.13, 0.0)), "right": ((0.17, 0.32), (-0.13, 0.0))}  # of objects: x, y, metres
COLOURS = {"left": "1 .2 .2 1", "right": "1 .8 .1 1"}
TURN = 0.3  # radians either way
PER_ARM = len(arm.JOINTS) + 1


def make_env(name: str, *, spread: float = 1.0, **env_kwargs: Any) -> SimulatedCellEnv:
    """Return the task.

    Args:
        name: Of the task.
        spread: Share of width and depth of the area, around its middle, in which objects begin: 0 to 1.
        env_kwargs: Options of `CellEnv`; max_episode_steps is 150.
    """
    check_within("spread", spread, 0.0, 1.0)
    return SimulatedCellEnv(PickAndPlaceCell(spread), name, **{"max_episode_steps": 150, **env_kwargs})


class PickAndPlaceCell(Simulation):
    """A command is where the joints of both arms shall go, and how far open the grippers shall be.

    `state` are the same 14 as they are; `objects` is where the two objects are, decimetres.

    Args:
        spread: Share of the area in which objects begin.
    """

    def __init__(self, spread: float = 1.0) -> None:
        self._spread = spread
        names = tuple(f"{side}.{joint}" for side in arm.SIDES for joint in (*arm.JOINTS, "gripper"))
        layout = Layout(
            actions=names,
            low=np.array(arm.LOW * 2),
            high=np.array(arm.HIGH * 2),
            max_step=np.array(arm.MAX_STEP * 2),
            numbers={"state": names, "objects": tuple(f"{side}.{axis}" for side in arm.SIDES for axis in "xyz")},
            cameras=("cam_high", "cam_left_wrist", "cam_right_wrist"),
            prompt=PROMPT,
            measured={name: name for name in names if not name.endswith("gripper")},
            pose_low=np.array(arm.POSE_LOW * 2),
            pose_high=np.array(arm.POSE_HIGH * 2),
        )
        super().__init__(_model(), layout)
        data = self.data
        self._joints = [[data.joint(f"{side}_{joint}") for joint in arm.JOINTS] for side in arm.SIDES]
        self._angles = np.array([joint.id for side in self._joints for joint in side]).reshape(2, -1)
        self._angles = self.model.jnt_qposadr[self._angles]  # [2, 6]
        fingers = [[data.joint(f"{side}_finger{number}").id for number in (1, 2)] for side in arm.SIDES]
        self._fingers = self.model.jnt_qposadr[np.array(fingers)]  # [2, 2]
        self._objects = {side: data.joint(f"{side}_object") for side in arm.SIDES}
        self._ghost = mujoco.MjData(self.model)  # arms as they would be
        self._tools = [self.model.site(f"{side}_tool").id for side in arm.SIDES]

    def home(self) -> Array:
        """Return the command that was given last."""
        control = self.data.ctrl.reshape(2, -1)  # of each arm six joints and two fingers
        return np.concatenate([control[:, :6], _opening(control[:, 6:7])], axis=1).ravel()

    def hold(self) -> None:
        """Stay where the joints are; grippers keep what they hold."""
        self.data.ctrl.reshape(2, -1)[:, :6] = self.data.qpos[self._angles]

    def observe(self) -> dict[str, Array]:
        """Return joints, grippers and objects."""
        state = np.concatenate([self.data.qpos[self._angles], self._openings()[:, None]], axis=1)
        objects = DECIMETRES * np.concatenate([self._objects[side].qpos[:3] for side in arm.SIDES])
        return {"state": state.ravel().astype(np.float32), "objects": objects.astype(np.float32)}

    def is_success(self) -> bool:
        """Return whether both objects lie in the box and both grippers are open."""
        places = np.stack([self._objects[side].qpos[:3] for side in arm.SIDES])
        is_inside = np.abs(places[:, :2] - arm.BIN).max() < arm.BIN_HALF and places[:, 2].max() < arm.BIN_HEIGHT
        return bool(is_inside and self._openings().min() > IS_OPEN)

    def pose(self, command: Array) -> Array:
        """Return where both tools would be, x, y and z of each."""
        self._ghost.qpos[self._angles] = command.reshape(2, PER_ARM)[:, :6]
        mujoco.mj_kinematics(self.model, self._ghost)
        return self._ghost.site_xpos[self._tools].ravel()

    def _openings(self) -> Array:
        return _opening(self.data.qpos[self._fingers].mean(axis=1))

    def _arrange(self, rng: np.random.Generator) -> None:
        for side, place in self._objects.items():
            (left, right), (near, far) = PLACES[side]
            turn = rng.uniform(-TURN, TURN) / 2.0
            place.qpos[:] = (
                *(self._drawn(rng, left, right), self._drawn(rng, near, far), arm.OBJECT),
                *(np.cos(turn), 0.0, 0.0, np.sin(turn)),
            )
        self.data.qpos[self._angles] = np.array(arm.HOME[:6]) + rng.uniform(-0.05, 0.05, (2, 6))
        self.data.qpos[self._fingers] = arm.OPENED
        self._command(np.concatenate([self.data.qpos[self._angles], np.ones((2, 1))], axis=1))

    def _drawn(self, rng: np.random.Generator, low: float, high: float) -> float:
        """Return a place of an object along one axis."""
        margin = (1.0 - self._spread) * (high - low) / 2.0
        return rng.uniform(low + margin, high - margin)

    def _place(self, numbers: Mapping[str, Array]) -> None:
        """Objects are put straight: how they are turned is not observed."""
        state = numbers["state"].reshape(2, PER_ARM)
        self.data.qpos[self._angles] = state[:, :6]
        self.data.qpos[self._fingers] = arm.CLOSED + state[:, 6:] * (arm.OPENED - arm.CLOSED)
        for place, where in zip(self._objects.values(), numbers.get("objects", np.zeros(6)).reshape(2, 3), strict=True):
            place.qpos[:] = (*(where / DECIMETRES), 1.0, 0.0, 0.0, 0.0)
        self._command(state)

    def _command(self, command: Array) -> None:
        wanted, control = command.reshape(2, PER_ARM), self.data.ctrl.reshape(2, -1)
        control[:, :6] = wanted[:, :6]
        control[:, 6:] = arm.CLOSED + wanted[:, 6:] * (arm.OPENED - arm.CLOSED)


def _opening(slides: Array) -> Array:
    """Return how far open grippers are, 0 to 1, whose fingers slid so far."""
    return (slides - arm.CLOSED) / (arm.OPENED - arm.CLOSED)


def _model() -> str:
    return f"""<mujoco>
<compiler angle="radian"/>
<option timestep="0.004" integrator="implicitfast" cone="elliptic" impratio="10"/>
<visual><global offwidth="640" offheight="480"/><quality shadowsize="0" offsamples="0"/></visual>
<default>
 <default class="arm">
  <geom contype="0" conaffinity="0" rgba=".9 .9 .95 1"/>
  <joint armature="0.05" damping="2"/>
 </default>
 <default class="finger">
  <joint type="slide" damping="5" range="{arm.CLOSED} {arm.OPENED}"/>
  <geom type="box" size=".03 .006 .012" condim="4" friction="2 .05 .001" contype="2" conaffinity="1" rgba=".1 .1 .1 1"/>
 </default>
 <default class="box"><geom type="box" rgba=".3 .5 .8 1"/></default>
</default>
<worldbody>
 <light pos="0 0 2" dir="0 0 -1" castshadow="false" ambient=".4 .4 .4"/>
 <geom type="plane" size="1 1 .1" rgba=".7 .7 .65 1"/>
 <camera name="cam_high" pos="0 -.62 .72" xyaxes="1 0 0 0 .72 .69" fovy="60"/>
 {_box()}
 {"".join(_arm(side) + _object(side) for side in arm.SIDES)}
</worldbody>
<actuator>{"".join(_motors(side) for side in arm.SIDES)}</actuator>
</mujoco>"""


def _box() -> str:
    half, thin = arm.BIN_HALF, 0.004
    walls = "".join(
        f'<geom pos="{x} {y} .03" size="{a} {b} .03"/>'
        for x, y, a, b in ((0, half, half, thin), (0, -half, half, thin), (half, 0, thin, half), (-half, 0, thin, half))
    )
    floor = f'<geom pos="0 0 {thin}" size="{half} {half} {thin}"/>'
    return f'<body name="box" pos="{arm.BIN[0]} {arm.BIN[1]} 0" childclass="box">{floor}{walls}</body>'


def _object(side: str) -> str:
    return f"""<body name="{side}_object"><freejoint name="{side}_object"/>
 <geom type="box" size="{arm.OBJECT} {arm.OBJECT} {arm.OBJECT}" mass=".05" condim="4" friction="1.5 .05 .001"
  contype="1" conaffinity="3" rgba="{COLOURS[side]}"/></body>"""


def _joint(side: str, name: str, axis: str) -> str:
    number = arm.JOINTS.index(name)
    return f'<joint name="{side}_{name}" axis="{axis}" range="{arm.LOW[number]} {arm.HIGH[number]}"/>'


def _arm(side: str) -> str:
    x, y = arm.BASES[side]
    fingers = "".join(
        f'<body pos=".045 {sign}.035 0" gravcomp="1"><geom class="finger"/>'
        f'<joint class="finger" name="{side}_finger{number}" axis="0 {sign}1 0"/></body>'
        for number, sign in ((1, ""), (2, "-"))
    )
    return f"""<body name="{side}_base" childclass="arm" pos="{x} {y} 0" euler="0 0 1.5707963">
<geom type="cylinder" size=".05 .04" pos="0 0 .04"/>
<body pos="0 0 .08" gravcomp="1">{_joint(side, "yaw", "0 0 1")}<geom type="cylinder" size=".045 .05" pos="0 0 .05"/>
<body pos="0 0 .1" gravcomp="1">{_joint(side, "shoulder", "0 1 0")}
<geom type="capsule" size=".03" fromto="0 0 0 0 0 {arm.UPPER}"/>
<body pos="0 0 {arm.UPPER}" gravcomp="1">{_joint(side, "elbow", "0 1 0")}
<geom type="capsule" size=".026" fromto="0 0 0 .24 0 0"/>
<body pos=".24 0 0" gravcomp="1">{_joint(side, "roll", "1 0 0")}
<geom type="capsule" size=".024" fromto="0 0 0 .05 0 0"/>
<body pos=".06 0 0" gravcomp="1">{_joint(side, "wrist", "0 1 0")}
<geom type="capsule" size=".022" fromto="0 0 0 .04 0 0"/>
<body name="{side}_hand" pos=".05 0 0" gravcomp="1">{_joint(side, "hand", "1 0 0")}
<geom type="box" size=".02 .05 .02" pos=".02 0 0" rgba=".2 .2 .2 1"/>
<site name="{side}_tool" pos=".06 0 0" rgba="0 0 0 0"/>
<camera name="cam_{side}_wrist" pos="-.01 0 .10" xyaxes="0 -1 0 .5 0 .87" fovy="80"/>
{fingers}
</body></body></body></body></body></body></body>"""


def _motors(side: str) -> str:
    joints = "".join(f'<position joint="{side}_{name}" kp="300" kv="25"/>' for name in arm.JOINTS)
    fingers = "".join(
        f'<position joint="{side}_finger{number}" kp="600" kv="10" forcerange="-12 12"/>' for number in (1, 2)
    )
    return joints + fingers
