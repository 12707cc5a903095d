"""How a task looks in a mirror at the robot's left-right plane: a rule for every observation term.

The world is mirrored in y: vectors change the sign of y, rotations of roll and yaw, left and right legs change places.
Where the feet of a pair step in turns, the gait of the image is half a cycle ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from rl_lab.core import ConfigError, Flip, Mirror
from rl_lab.robots.managers.observations import ObservationManager
from rl_lab.robots.managers.terms import Function, Term
from rl_lab.robots.mdp import events
from rl_lab.robots.mdp import observations as seen
from rl_lab.robots.mdp.state import Gait
from rl_lab.robots.mdp.world import World

CLOSE = 1e-3  # m
VECTOR, ROTATION = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)


@dataclass(frozen=True)
class Sides:
    """What changes places: (source, sign) of joints, sources of feet and of a scan's points, and the gait."""

    joints: Flip
    feet: tuple[int, ...]
    scan: tuple[int, ...]
    gait: Gait
    events: Mapping[str, Function]  # what draws, by the event's name


Rule = Callable[[Sides, Mapping[str, Any]], Flip]


def find_mirror(
    world: World, gait: Gait, scan: Tensor, drawing: Mapping[str, Function], groups: ObservationManager
) -> tuple[Mirror | None, str]:
    """Return how a task looks in a mirror, or None and why."""
    try:
        joints = _mirrored_joints(world)
        sides = Sides(joints, _mirrored_feet(world), _mirrored_scan(scan), gait, drawing)
        flips = {name: group.mirror(lambda term: _flip(term, sides)) for name, group in groups.groups.items()}
    except ConfigError as error:  # most tasks never ask
        return None, str(error)
    return Mirror(flips if len(flips) > 1 else {"": next(iter(flips.values()))}, joints), ""


def _flip(term: Term, sides: Sides) -> Flip:
    given = term.options["mirror"]
    if given is not None:
        try:
            return [(int(source), float(sign)) for source, sign in given]
        except (TypeError, ValueError):
            raise ConfigError(f"mirror: must hold pairs [source, sign], not {given!r}") from None
    if term.function not in RULES:
        raise ConfigError(f"{term.function.__name__} has no rule; its key mirror may hold pairs [source, sign]")
    return RULES[term.function](sides, term.params)


def _mirrored_joints(world: World) -> Flip:
    joints = world.robot.joints
    pairs = list(zip(*world.robot.mirrored_joints(), strict=True))
    for joint, (source, sign) in zip(joints, pairs, strict=True):
        other = joints[source]
        if (joint.default, joint.action_scale) != (sign * other.default, other.action_scale):
            raise ConfigError(f"default or action_scale of joint {joint.name!r} is not that of {other.name!r} mirrored")
    return pairs


def _mirrored_feet(world: World) -> tuple[int, ...]:
    """Return for each foot the one that stands where its image does, in the default pose."""
    model, data = world.model, mujoco.MjData(world.model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    places = data.site_xpos[list(world.layout.feet)] - data.xpos[world.layout.base]
    return _images("foot {} of robot " + repr(world.robot.name), places)


def _mirrored_scan(scan: Tensor) -> tuple[int, ...]:
    return _images("point {} of environment.terrain.scan", scan.cpu().double().numpy())


def _images(name: str, places: np.ndarray) -> tuple[int, ...]:
    sources = []
    for index, place in enumerate(places):
        image = place.copy()
        image[1] *= -1.0
        far = np.linalg.norm(places - image, axis=-1)
        if far.min() > CLOSE:
            raise ConfigError(f"{name.format(index)} has no mirror image")
        sources.append(int(far.argmin()))
    return tuple(sources)


def _signs(*signs: float) -> Rule:
    return lambda sides, params: list(enumerate(signs))


def _joints(sides: Sides, params: Mapping[str, Any]) -> Flip:
    chosen = params.get("joints")
    if chosen is None:
        return sides.joints
    columns = chosen.tolist()
    if any(sides.joints[column][0] not in columns for column in columns):
        raise ConfigError("its joints are not those of both sides")
    return [(columns.index(sides.joints[column][0]), sides.joints[column][1]) for column in columns]


def _unsigned_joints(repeat: int) -> Rule:
    """Return the rule of factors: they go with their joints, and have no direction."""

    def rule(sides: Sides, params: Mapping[str, Any]) -> Flip:
        count = len(sides.joints)
        return [(source + part * count, 1.0) for part in range(repeat) for source, _ in sides.joints]

    return rule


def _feet(sides: Sides, params: Mapping[str, Any]) -> Flip:
    return [(source, 1.0) for source in sides.feet]


def _foot_vectors(sides: Sides, params: Mapping[str, Any]) -> Flip:
    return [(3 * source + axis, sign) for source in sides.feet for axis, sign in enumerate(VECTOR)]


def _scan(sides: Sides, params: Mapping[str, Any]) -> Flip:
    return [(source, 1.0) for source in sides.scan]


def _phase(sides: Sides, params: Mapping[str, Any]) -> Flip:
    """Return the rule of sine and cosine: half a cycle later both have the other sign."""
    offsets = sides.gait.offsets.tolist()
    angles = [2.0 * np.pi * (offsets[foot] - offsets[source]) for foot, source in enumerate(sides.feet)]
    for sign in (1.0, -1.0):
        if all(abs(np.cos(angle) - sign) < CLOSE for angle in angles):
            return [(0, sign), (1, sign)]
    raise ConfigError(f"the gait's offsets {offsets} are not the same in a mirror, nor half a cycle later")


def _gait_feet(sides: Sides, params: Mapping[str, Any]) -> Flip:
    _phase(sides, params)
    return _feet(sides, params)


def _reference(sides: Sides, params: Mapping[str, Any]) -> Flip:
    """Return the rule of joints beside their reference, which has the same amplitudes on both sides."""
    _phase(sides, params)
    legs = sides.gait.legs.tolist()
    for leg, source in zip(legs, sides.feet, strict=True):
        if [sides.joints[joint] for joint in leg] != [(joint, 1.0) for joint in legs[source]]:
            raise ConfigError("the gait's legs are not each other's mirror images")
    return sides.joints


def _randomized(sides: Sides, params: Mapping[str, Any]) -> Flip:
    event = params["event"]
    function = sides.events[event]
    if function not in DRAWN:
        raise ConfigError(f"event {event!r} has no rule; its key mirror may hold pairs [source, sign]")
    return DRAWN[function](sides, {})


RULES: dict[Function, Rule] = {
    seen.base_z_pos: _signs(1.0),
    seen.base_lin_vel: _signs(*VECTOR),
    seen.base_ang_vel: _signs(*ROTATION),
    seen.projected_gravity: _signs(*VECTOR),
    seen.base_euler: _signs(*ROTATION),
    seen.base_roll_pitch: _signs(*ROTATION[:2]),
    seen.base_quat: _signs(1.0, *ROTATION),
    seen.joint_pos: _joints,
    seen.joint_pos_true: _joints,
    seen.absolute_joint_pos: _joints,
    seen.joint_vel: _joints,
    seen.actions: _joints,
    seen.torques: _joints,
    seen.command: _signs(1.0, -1.0, -1.0),
    seen.gait_phase: _phase,
    seen.height_scan: _scan,
    seen.foot_pos: _foot_vectors,
    seen.foot_height: _feet,
    seen.foot_air_time: _feet,
    seen.foot_contact: _feet,
    seen.foot_forces: _foot_vectors,
    seen.stance_curve: _gait_feet,
    seen.swing_curve: _gait_feet,
    seen.joint_ref_diff: _reference,
    seen.push: _signs(*VECTOR, *ROTATION),
    seen.randomized: _randomized,
}
DRAWN: dict[Function, Rule] = {
    events.friction: _signs(1.0),
    events.restitution: _signs(1.0),
    events.base_mass: _signs(1.0),
    events.base_com: _signs(*VECTOR),
    events.action_lag: _signs(1.0),
    events.motor_offset: _joints,
    events.motor_strength: _unsigned_joints(1),
    events.gains: _unsigned_joints(2),
    events.joint_friction: _unsigned_joints(2),
    events.joint_damping: _unsigned_joints(2),
    events.armature: _unsigned_joints(2),
}
