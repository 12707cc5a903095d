"""What happens to worlds beside the policy: starting poses, pushes and domain randomisation.

An event draws for every world and writes in those of `mask`, so that no step waits for a device. Values are drawn
around the model's own, never around the last draw. What it returns, [N, k], is known to privileged observations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_lab.core import ConfigError
from rl_lab.robots.mdp.foot_geoms import foot_geoms
from rl_lab.robots.mdp.rotations import quat_of_euler
from rl_lab.robots.mdp.world import World, randomizes
from rl_lab.robots.models.gains import default_gains, gain_parameters, gain_places

Range = tuple[float, float]


def reset_base(
    world: World,
    mask: Tensor,
    position: Range = (0.0, 0.0),
    yaw: Range = (-math.pi, math.pi),
    tilt: Range = (0.0, 0.0),
    velocity: Range = (0.0, 0.0),
    spin: Range = (0.0, 0.0),
) -> None:
    """Put the base at its world's origin, moved by `position` m in x and y, turned, with this `velocity` and `spin`."""
    qpos, qvel = world.sim.read("qpos").clone(), world.sim.read("qvel").clone()
    home = world.default("key_qpos")[0]
    qpos[:, :3] = world.origins + home[:3]
    qpos[:, :2] += world.uniform(*position, 2)
    euler = torch.cat((world.uniform(*tilt, 2), world.uniform(*yaw, 1)), -1)
    qpos[:, 3:7] = quat_of_euler(euler)
    qvel[:, :3], qvel[:, 3:6] = world.uniform(*velocity, 3), world.uniform(*spin, 3)
    world.sim.write("qpos", qpos, mask)
    world.sim.write("qvel", qvel, mask)


def reset_joints(world: World, mask: Tensor, offset: Range = (0.0, 0.0), velocity: Range = (0.0, 0.0)) -> None:
    """Put the joints near the default pose, within their soft limits."""
    facts, count = world.facts, len(world.facts.joints)
    qpos, qvel = world.sim.read("qpos").clone(), world.sim.read("qvel").clone()
    pose = facts.default_pos + world.uniform(*offset, count)
    qpos[:, world.columns("qpos", lambda: world.layout.qpos)] = torch.clamp(pose, facts.low, facts.high)
    qvel[:, _dofs(world)] = world.uniform(*velocity, count)
    world.sim.write("qpos", qpos, mask)
    world.sim.write("qvel", qvel, mask)


def push(
    world: World, mask: Tensor, linear: Range = (-0.5, 0.5), vertical: Range = (0.0, 0.0), angular: Range = (0.0, 0.0)
) -> Tensor:
    """Add to the base's velocity: `linear` along x and y of the world, `vertical`, and `angular` about its own axes."""
    draw = torch.cat((world.uniform(*linear, 2), world.uniform(*vertical, 1), world.uniform(*angular, 3)), -1)
    qvel = world.sim.read("qvel").clone()
    qvel[:, :6] += draw
    world.sim.write("qvel", qvel, mask)
    world.push = torch.where(mask.unsqueeze(-1), draw, world.push)
    return draw


@randomizes("geom_friction")
def friction(world: World, mask: Tensor, range: Range = (0.5, 1.25)) -> Tensor:
    """Draw the sliding friction of the feet, the same for all feet of a world."""
    geoms = foot_geoms(world)
    draw = world.uniform(*range, 1)
    values = world.default("geom_friction")[geoms].expand(len(draw), -1, -1).clone()
    values[:, :, 0] = draw
    world.change("geom_friction", geoms, values, mask)
    return draw


@randomizes("geom_solref")
def restitution(world: World, mask: Tensor, range: Range = (0.0, 0.4)) -> Tensor:
    """Draw how much of its speed a foot keeps when it bounces; its contacts keep their stiffness and lose damping."""
    if not 0.0 <= range[0] <= range[1] < 1.0:
        raise ConfigError(f"environment.events: restitution lies in [0, 1), got {list(range)}")
    geoms = foot_geoms(world)
    draw = world.uniform(*range, 1)
    log = torch.log(draw.clamp_min(1e-3))
    values = world.default("geom_solref")[geoms].expand(len(draw), -1, -1).clone()
    ratio = (-log / torch.sqrt(math.pi**2 + log.square())).clamp_max(1.0)
    values[:, :, 0] *= values[:, :, 1] / ratio  # the stiffness is 1 / (time constant * damping ratio)^2
    values[:, :, 1] = ratio
    world.change("geom_solref", geoms, values, mask)
    return draw


@randomizes("body_mass", "body_inertia", recompute=True)
def base_mass(world: World, mask: Tensor, range: Range = (-1.0, 1.0)) -> Tensor:
    """Add kilograms to the base; its inertia grows with its mass."""
    draw, base = world.uniform(*range, 1), _base(world)
    mass = world.default("body_mass")[base]
    world.set_factor("mass", ((mass + draw) / mass).clamp_min(0.1), mask, base)
    _write_masses(world, mask)
    return draw


@randomizes("body_mass", "body_inertia", recompute=True)
def link_mass(world: World, mask: Tensor, range: Range = (0.9, 1.1)) -> Tensor:
    """Multiply the mass of every body but the base, each by its own factor."""
    links = world.columns("links", lambda: [i for i in _robot_bodies(world) if i != world.layout.base])
    draw = world.uniform(*range, len(links))
    world.set_factor("mass", draw, mask, links)
    _write_masses(world, mask)
    return draw


@randomizes("body_mass", "body_inertia", recompute=True)
def link_inertia(world: World, mask: Tensor, range: Range = (0.9, 1.1)) -> Tensor:
    """Multiply the inertia of every body, on top of what its mass does, each by its own factor."""
    links = world.columns("bodies", lambda: _robot_bodies(world))
    draw = world.uniform(*range, len(links))
    world.set_factor("inertia", draw, mask, links)
    _write_masses(world, mask)
    return draw


@randomizes("body_ipos", recompute=True)
def base_com(world: World, mask: Tensor, x: Range = (0.0, 0.0), y: Range = (0.0, 0.0), z: Range = (0.0, 0.0)) -> Tensor:
    """Move the base's centre of mass, each axis by its own draw."""
    draw = torch.cat([world.uniform(*axis, 1) for axis in (x, y, z)], -1)
    base = _base(world)
    world.change("body_ipos", base, (world.default("body_ipos")[base] + draw).unsqueeze(1), mask)
    return draw


@randomizes("actuator_gainprm", "actuator_biasprm")
def gains(world: World, mask: Tensor, kp: Range = (0.9, 1.1), kd: Range = (0.9, 1.1)) -> Tensor:
    """Multiply stiffness and damping of every actuator, each by its own factors."""
    count = len(world.facts.joints)
    draw = torch.cat((world.uniform(*kp, count), world.uniform(*kd, count)), -1)
    world.set_factor("kp", draw[:, :count], mask)
    world.set_factor("kd", draw[:, count:], mask)
    _write_gains(world, mask)
    return draw


@randomizes("actuator_gainprm", "actuator_biasprm")
def motor_strength(world: World, mask: Tensor, range: Range = (0.9, 1.1)) -> Tensor:
    """Multiply the torque that each actuator makes of its error, once per draw: a motor, not white noise."""
    draw = world.uniform(*range, len(world.facts.joints))
    world.set_factor("strength", draw, mask)
    _write_gains(world, mask)
    return draw


def motor_offset(world: World, mask: Tensor, range: Range = (-0.035, 0.035)) -> Tensor:
    """Draw how many rad each encoder reads too much; controllers believe their encoders."""
    draw = world.uniform(*range, len(world.facts.joints))
    world.joint_offset = torch.where(mask.unsqueeze(-1), draw, world.joint_offset)
    return draw


@randomizes("dof_frictionloss")
def joint_friction(world: World, mask: Tensor, scale: Range = (1.0, 1.0), add: Range = (0.0, 0.0)) -> Tensor:
    """Multiply the dry friction of the joints and add N m to it; it always acts against the motion."""
    return _change_dofs(world, mask, "dof_frictionloss", scale, add)


@randomizes("dof_damping")
def joint_damping(world: World, mask: Tensor, scale: Range = (1.0, 1.0), add: Range = (0.0, 0.0)) -> Tensor:
    """Multiply the viscous friction of the joints and add N m s/rad to it."""
    return _change_dofs(world, mask, "dof_damping", scale, add)


@randomizes("dof_armature", recompute=True)
def armature(world: World, mask: Tensor, scale: Range = (0.9, 1.1)) -> Tensor:
    """Multiply the rotor inertia of the joints, each by its own factor."""
    return _change_dofs(world, mask, "dof_armature", scale, (0.0, 0.0))


@randomizes("actuator_delay")
def action_lag(world: World, mask: Tensor, range: Range = (0.0, 0.02)) -> Tensor:
    """Draw by how many seconds actuators get their targets late, one lag per world in whole physics steps."""
    timestep = float(world.model.opt.timestep)
    draw = torch.round(world.uniform(*range, 1) / timestep) * timestep
    columns = _actuators(world)
    world.change("actuator_delay", columns, draw.expand(-1, len(columns)), mask)
    return draw


def _base(world: World) -> Tensor:
    return world.columns("base", lambda: [world.layout.base])


def _actuators(world: World) -> Tensor:
    return world.columns("actuators", lambda: world.layout.actuator)


def _dofs(world: World) -> Tensor:
    return world.columns("dofs", lambda: world.layout.dof)


def _robot_bodies(world: World) -> list[int]:
    root = world.model.body_rootid[world.layout.base]
    return [i for i in range(world.model.nbody) if i and world.model.body_rootid[i] == root]


def _write_masses(world: World, mask: Tensor) -> None:
    mass, inertia = world.factors["mass"], world.factors["inertia"]
    world.sim.write_model("body_mass", world.default("body_mass") * mass, mask)
    world.sim.write_model("body_inertia", world.default("body_inertia") * (mass * inertia).unsqueeze(-1), mask)


def _write_gains(world: World, mask: Tensor) -> None:
    """Write gains that make `strength` times the torque of an actuator whose own gains are multiplied by kp and kd."""
    columns = _actuators(world)
    kp0 = world.constant("kp", lambda: default_gains(world.model)[0])
    kd0 = world.constant("kd", lambda: default_gains(world.model)[1])
    own = world.constant("gains", lambda: gain_places(world.model)[0])
    signs = world.constant("signs of gains", lambda: gain_places(world.model)[1])
    factors = {name: torch.ones(len(mask), len(kp0), device=mask.device) for name in ("kp", "kd", "strength")}
    factors = {name: value.index_copy(1, columns, world.factors[name]) for name, value in factors.items()}
    strength = factors["strength"]
    gain, bias = gain_parameters(kp0 * factors["kp"] * strength, kd0 * factors["kd"] * strength, own, signs)
    is_motor = world.constant("torque", lambda: torch.tensor([j.control == "torque" for j in world.robot.joints]))
    gain[:, columns, 0] *= torch.where(is_motor, world.factors["strength"], 1.0)
    world.sim.write_model("actuator_gainprm", gain, mask)
    world.sim.write_model("actuator_biasprm", bias, mask)


def _change_dofs(world: World, mask: Tensor, name: str, scale: Range, add: Range) -> Tensor:
    columns = _dofs(world)
    count = len(columns)
    draw = torch.cat((world.uniform(*scale, count), world.uniform(*add, count)), -1)
    values = (world.default(name)[columns] * draw[:, :count] + draw[:, count:]).clamp_min(0.0)
    world.change(name, columns, values, mask)
    return draw
