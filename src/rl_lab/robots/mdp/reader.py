"""From a simulation's fields to a `RobotState`, all columns by name; follows the feet from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from rl_lab.robots.mdp.foot_geoms import foot_geom_ids
from rl_lab.robots.mdp.rotations import projected_gravity, rotate_inverse
from rl_lab.robots.mdp.state import Gait, RobotFacts, RobotState
from rl_lab.robots.mdp.world import World
from rl_lab.robots.models.layout import has_sensor, sensor_columns
from rl_lab.robots.models.scene import EXTRA_SENSORS

if TYPE_CHECKING:
    from rl_lab.robots.models.layout import Layout
    from rl_lab.robots.models.robot import Robot

TOUCH = 1.0  # N: a foot with more than this stands
Height = Callable[[Tensor, Tensor], Tensor]  # x, y -> height of the ground

MEMORY = ("last_world_vel", "last_joint_vel", "air_time", "contact_time", "flight_time", "stance_time", "peak_height")


def robot_facts(model: mujoco.MjModel, robot: Robot, layout: Layout, dt: float, device: torch.device) -> RobotFacts:
    """Return names and constants of a robot in its compiled scene."""
    ranges = torch.tensor(model.jnt_range[list(layout.joint)], dtype=torch.float32)
    limited = torch.tensor(model.jnt_limited[list(layout.joint)], dtype=torch.bool).unsqueeze(-1)
    ranges = torch.where(limited, ranges, torch.tensor([-torch.inf, torch.inf]))
    middle, half = ranges.mean(-1).nan_to_num(0.0), (ranges[:, 1] - ranges[:, 0]) / 2.0 * robot.soft_limit
    root = model.body_rootid[layout.base]
    bodies = [i for i in range(1, model.nbody) if model.body_rootid[i] == root]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return RobotFacts(
        joints=robot.joint_names,
        feet=robot.feet,
        bodies=tuple(model.body(i).name for i in bodies),
        touching=robot.contact_names[len(robot.feet) :],
        dt=dt,
        default_pos=column([joint.default for joint in robot.joints]),
        low=(middle - half).to(device),
        high=(middle + half).to(device),
        effort=column([joint.effort for joint in robot.joints]),
        max_speed=column([joint.max_speed for joint in robot.joints]),
        base_height=robot.base_height,
    )


class StateReader:
    """Makes the state of each step. `scan` are the points [P, 2] of a height scan in the base's heading frame."""

    def __init__(self, world: World, gait: Gait, height: Height | None, scan: Tensor) -> None:
        layout, model, device = world.layout, world.model, world.sim.device
        self._world, self.gait, self._height, self._scan = world, gait, height, scan
        names = [model.body(i).name for i in range(model.nbody)]
        self._bodies = _indices([names.index(name) for name in world.facts.bodies], device)
        self._qpos, self._dof = _indices(layout.qpos, device), _indices(layout.dof, device)
        self._actuators, self._feet = _indices(layout.actuator, device), _indices(layout.feet, device)
        self._foot_bodies = _indices([int(model.site_bodyid[site]) for site in layout.feet], device)
        self._soles = torch.tensor(sole_heights(world), device=device)
        self._force, self._force_owner = self._force_columns(device)
        self._extra = {name: sensor_columns(model, name) for name in EXTRA_SENSORS if has_sensor(model, name)}
        substeps = round(world.facts.dt / model.opt.timestep)
        self._self_force = torch.zeros(world.sim.num_envs, substeps, device=device)
        self.memory: dict[str, Tensor] = {}
        self._clear()

    def _force_columns(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the columns of all contact sensors [S, 3], and which foot or body each of them belongs to [S, C]."""
        slices = [(owner, part) for owner, parts in enumerate(self._world.layout.contacts.values()) for part in parts]
        columns = [list(range(part.start, part.stop)) for _, part in slices]
        owners = torch.zeros(len(slices), len(self._world.layout.contacts), device=device)
        for row, (owner, _) in enumerate(slices):
            owners[row, owner] = 1.0
        return _indices(columns, device).view(-1, 3), owners

    def _clear(self) -> None:
        count, facts, device = self._world.sim.num_envs, self._world.facts, self._world.sim.device
        sizes = {"last_world_vel": 6, "last_joint_vel": len(facts.joints)}
        self.memory = {name: torch.zeros(count, sizes.get(name, len(facts.feet)), device=device) for name in MEMORY}

    def read(self, actions: tuple[Tensor, Tensor, Tensor], command: Tensor, elapsed: Tensor) -> RobotState:
        """Return the state after a step; `actions` are the last three, newest first. Changes nothing."""
        world, memory = self._world, self.memory
        sim = world.sim
        qpos, qvel = sim.read("qpos").clone(), sim.read("qvel").clone()  # a reset must not change what was seen
        quat, world_vel = qpos[:, 3:7], qvel[:, :6]
        foot_pos, foot_vel = self._foot_motion()
        forces = sim.read("sensordata")[:, self._force]  # [N, S, 3]
        num_feet = len(world.facts.feet)
        foot_force = torch.einsum("nsk,sc->nck", forces, self._force_owner[:, :num_feet])
        touch = forces.norm(dim=-1) @ self._force_owner[:, num_feet:]
        return RobotState(
            facts=world.facts,
            base_pos=qpos[:, :3],
            base_quat=quat,
            lin_vel=rotate_inverse(quat, world_vel[:, :3]),
            ang_vel=world_vel[:, 3:],
            gravity=projected_gravity(quat),
            world_vel=world_vel,
            last_world_vel=memory["last_world_vel"],
            joint_pos=qpos[:, self._qpos],
            joint_vel=qvel[:, self._dof],
            last_joint_vel=memory["last_joint_vel"],
            torques=sim.read("actuator_force")[:, self._actuators],
            actions=actions[0],
            last_actions=actions[1],
            older_actions=actions[2],
            command=command,
            phase=torch.remainder(elapsed * (world.facts.dt / self.gait.cycle_s), 1.0),
            body_pos=sim.read("xpos")[:, self._bodies],
            foot_pos=foot_pos,
            foot_vel=foot_vel,
            foot_force=foot_force,
            touch=touch,
            terminated=torch.zeros(len(qpos), dtype=torch.bool, device=qpos.device),
            joint_offset=world.joint_offset,
            push=world.push,
            gait=self.gait,
            randomized=world.randomized,
            **self._sensed(qpos),
            **self._ground(qpos, quat, foot_pos),
            **self._stance(foot_force.norm(dim=-1) > TOUCH),
        )

    def step(self, substeps: int) -> None:
        """Let time pass; where a term wants to know, look after each physics step whether the robot touches itself."""
        sim = self._world.sim
        if "self_contact" not in self._extra:
            sim.step(substeps)
            return
        forces = []
        for _ in range(substeps):
            sim.step(1)
            forces.append(sim.read("sensordata")[:, self._extra["self_contact"]].norm(dim=-1))
        self._self_force = torch.stack(forces, -1)

    def remember(self, state: RobotState) -> None:
        """Keep what the next step compares itself with."""
        flight = torch.where(state.contact, 0.0, state.air_time)
        lifted = ~state.contact & (self.memory["air_time"] <= 0.0)  # a new flight has its own peak
        peak = torch.where(lifted, 0.0, state.peak_height)
        self.memory = {
            "last_world_vel": state.world_vel,
            "last_joint_vel": state.joint_vel,
            "air_time": flight,
            "contact_time": state.contact_time,
            "flight_time": state.flight_time,
            "stance_time": state.stance_time,
            "peak_height": torch.where(state.contact, peak, torch.maximum(peak, state.foot_height)),
        }

    def restart(self, mask: Tensor) -> None:
        """Forget the past of the worlds in `mask`; their velocities are those they start with."""
        qvel = self._world.sim.read("qvel")
        starts = {"last_world_vel": qvel[:, :6], "last_joint_vel": qvel[:, self._dof]}
        self.memory = {
            name: torch.where(mask.unsqueeze(-1), starts.get(name, torch.zeros_like(value)), value)
            for name, value in self.memory.items()
        }

    def _foot_motion(self) -> tuple[Tensor, Tensor]:
        """Return positions and velocities of the feet in the world: what their body's motion is at their place."""
        sim = self._world.sim
        position = sim.read("site_xpos")[:, self._feet]
        motion = sim.read("cvel")[:, self._foot_bodies]  # angular, then linear at the robot's centre of mass
        arm = position - sim.read("subtree_com")[:, self._world.layout.base].unsqueeze(1)
        return position, motion[..., 3:] + torch.linalg.cross(motion[..., :3], arm)

    def _sensed(self, qpos: Tensor) -> dict[str, Tensor]:
        """Return what sensors tell that the scene has only where a term reads it."""
        data, columns = self._world.sim.read("sensordata"), self._extra.get("angular_momentum")
        momentum = qpos.new_zeros(len(qpos), 3) if columns is None else data[:, columns]
        return {"angular_momentum": momentum, "self_force": self._self_force}

    def _ground(self, qpos: Tensor, quat: Tensor, foot_pos: Tensor) -> dict[str, Tensor]:
        feet = foot_pos[..., 2] - self._soles
        if self._height is None:
            scan = torch.zeros(len(qpos), len(self._scan), device=qpos.device)
            return {"foot_height": feet, "ground": torch.zeros_like(qpos[:, 0]), "heights": scan}
        below = self._height(foot_pos[..., 0], foot_pos[..., 1])
        heading = torch.nn.functional.normalize(torch.stack((quat[:, 0], quat[:, 3]), -1), dim=-1)  # of the yaw alone
        cos, sin = heading[:, 0].square() - heading[:, 1].square(), 2.0 * heading[:, 0] * heading[:, 1]
        x = qpos[:, :1] + cos.unsqueeze(-1) * self._scan[:, 0] - sin.unsqueeze(-1) * self._scan[:, 1]
        y = qpos[:, 1:2] + sin.unsqueeze(-1) * self._scan[:, 0] + cos.unsqueeze(-1) * self._scan[:, 1]
        ground = self._height(qpos[:, 0], qpos[:, 1])
        return {"foot_height": feet - below, "ground": ground, "heights": self._height(x, y)}

    def _stance(self, contact: Tensor) -> dict[str, Tensor]:
        """Return how long each foot has been up or down, and which of them have just landed."""
        memory, dt = self.memory, self._world.facts.dt
        flight, stance = memory["air_time"] + dt, memory["contact_time"] + dt
        landed, left = contact & (memory["air_time"] > 0.0), ~contact & (memory["contact_time"] > 0.0)
        return {
            "contact": contact,
            "first_contact": landed,
            "air_time": torch.where(contact, 0.0, flight),
            "contact_time": torch.where(contact, stance, 0.0),
            "flight_time": torch.where(landed, flight, memory["flight_time"]),
            "stance_time": torch.where(left, stance, memory["stance_time"]),
            "peak_height": memory["peak_height"],
        }

    def get_state(self) -> dict[str, Tensor]:
        """Return the memory."""
        return {name: value.clone() for name, value in self.memory.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with this memory."""
        self.memory = {name: state[name].to(self._world.sim.device, copy=True) for name in MEMORY}


def _indices(values: Any, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def sole_heights(world: World) -> list[float]:
    """Return how high each foot's site is above its sole while the robot stands in its default pose."""
    model, layout, robot = world.model, world.layout, world.robot
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    heights = []
    for site in layout.feet:
        own = [i for i in foot_geom_ids(model, robot, layout) if model.geom_bodyid[i] == model.site_bodyid[site]]
        heights.append(float(data.site_xpos[site][2]) - min(_lowest(model, data, geom) for geom in own))
    return heights


def _lowest(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """Return the lowest z of a geom."""
    kind, (radius, half, _) = int(model.geom_type[geom]), model.geom_size[geom]
    up = data.geom_xmat[geom].reshape(3, 3)[2]  # the vertical in the geom's own axes
    shape = mujoco.mjtGeom
    if kind == shape.mjGEOM_MESH:
        mesh = int(model.geom_dataid[geom])
        first = int(model.mesh_vertadr[mesh])
        reach = -(model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])] @ up).min()
    elif kind == shape.mjGEOM_BOX:
        reach = abs(up) @ model.geom_size[geom]
    elif kind == shape.mjGEOM_ELLIPSOID:
        reach = np.linalg.norm(up * model.geom_size[geom])
    elif kind == shape.mjGEOM_CYLINDER:
        reach = radius * math.hypot(up[0], up[1]) + half * abs(up[2])
    else:  # a sphere is a capsule of no length
        reach = radius + half * abs(up[2])
    return float(data.geom_xpos[geom][2] - reach)
