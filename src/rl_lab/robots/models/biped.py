"""Bipeds of primitive shapes: 12 leg joints under one lumped upper body, each preset in its own joint order.

Names are the same for every preset (`left_hip_pitch`, `right_knee`, ...); the order of joints, and so of actions,
is the original robot's. Links without published inertia are solid cylinders of their length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, sin

from rl_lab.robots.models.mjcf import FOOT, NO_CONTACT, ROBOT_CONTACT, inertial, numbers, robot_mjcf, rod_inertia
from rl_lab.robots.models.robot import Joint, Robot

Vector = tuple[float, float, float]
SIDES = {"left": 1, "right": -1}
MIRROR_SIGN = {  # the image of a rotation about y keeps its sign, those about x and z change it
    "hip_pitch": 1.0,
    "hip_roll": -1.0,
    "hip_yaw": -1.0,
    "knee": 1.0,
    "ankle_pitch": 1.0,
    "ankle_roll": -1.0,
}


@dataclass(frozen=True)
class Link:
    """One body of a left leg and the joint that moves it; the right leg is its mirror image.

    Args:
        joint: The joint, whose `name` lacks the side; default, gains and limits are those of the left leg.
        axis: The joint's axis in the body's frame.
        position: The body's place in its parent in m.
        mass: In kg.
        com: Centre of mass in m.
        inertia: About the centre of mass in kg m^2; None takes a solid cylinder.
        shape: Radius and lower end z of the collision capsule in m; None for no geometry.
        pitch: The body's fixed tilt about y in its parent, in rad.
    """

    joint: Joint
    axis: Vector
    position: Vector
    mass: float
    com: Vector = (0.0, 0.0, 0.0)
    inertia: Vector | None = None
    shape: tuple[float, float] | None = None
    pitch: float = 0.0


@dataclass(frozen=True)
class Body:
    """What a biped has beside its legs: the lumped upper body, and the soles.

    Args:
        mass: Of the upper body in kg.
        com: Its centre of mass in m.
        inertia: About its centre of mass in kg m^2.
        sole: Height of the ankle above the ground in m.
        toe: How far the sole reaches to the front in m.
        heel: How far it reaches to the back in m.
        half_width: Of the sole in m.
        base_height: Of the base in m, standing in the default pose.
        imu: Place of the IMU in the base in m.
    """

    mass: float
    com: Vector
    inertia: Vector
    sole: float
    toe: float
    heel: float
    half_width: float
    base_height: float
    imu: Vector = (0.0, 0.0, 0.0)


def biped(name: str, body: Body, links: tuple[Link, ...]) -> Robot:
    """Return a biped of one left leg's links, in the order of the actions, and their mirror image."""
    joints = [side_joint(link.joint, side) for side in SIDES for link in links]
    legs = "".join(leg_text(body, links, side, sign) for side, sign in SIDES.items())
    base = f"""<body name="base" pos="{numbers(0, 0, body.base_height)}"><freejoint name="root"/>
{inertial(body.mass, body.com, body.inertia)}
<geom name="torso" type="capsule" size="0.09" fromto="0 0 0.05 0 0 0.38" {ROBOT_CONTACT} rgba="0.2 0.2 0.25 1"/>
<geom name="head" type="sphere" size="0.08" pos="0.02 0 0.52" {ROBOT_CONTACT} rgba="0.9 0.6 0.1 1"/>
<site name="imu" pos="{numbers(*body.imu)}"/>
{legs}</body>
"""
    return Robot(
        name=name,
        mjcf=robot_mjcf(name, base),
        joints=tuple(joints),
        base="base",
        feet=tuple(f"{side}_foot" for side in SIDES),
        penalised=tuple(f"{side}_{link.joint.name}" for side in SIDES for link in links if link.shape),
        terminating=("base",),
        base_height=body.base_height,
        spawn_height=body.base_height + 0.005,
        mirror={
            f"{side}_{link.joint.name}": (f"{other}_{link.joint.name}", MIRROR_SIGN[link.joint.name])
            for side, other in (("left", "right"), ("right", "left"))
            for link in links
        },
    )


def side_joint(joint: Joint, side: str) -> Joint:
    """Return a leg's joint: the right one's angles are the left one's in the mirror."""
    named = replace(joint, name=f"{side}_{joint.name}")
    if side == "left" or MIRROR_SIGN[joint.name] > 0:
        return named
    low, high = joint.range or (0.0, 0.0)
    return replace(named, default=-joint.default, range=(-high, -low) if joint.range else None)


def leg_text(body: Body, links: tuple[Link, ...], side: str, sign: int) -> str:
    """Return one leg's bodies, each inside the one before."""
    parts = [link_text(link, side, sign) for link in links]
    return "".join(parts) + foot_text(body, side) + "</body>" * len(links) + "\n"


def link_text(link: Link, side: str, sign: int) -> str:
    """Return the opening of a body with its joint, mass and shape, mirrored for the right leg."""
    (x, y, z), (ax, ay, az) = link.position, link.axis
    axis = (ax * sign, ay, az * sign) if MIRROR_SIGN[link.joint.name] > 0 else (ax, ay * sign, az)
    length = abs(link.shape[1]) if link.shape else 0.08
    inertia = link.inertia or rod_inertia(link.mass, 0.04, length)
    name = f"{side}_{link.joint.name}"
    text = f"""<body name="{name}" pos="{numbers(x, y * sign, z)}"
 quat="{numbers(cos(link.pitch / 2), 0, sin(link.pitch / 2), 0)}">
{inertial(link.mass, (link.com[0], link.com[1] * sign, link.com[2]), inertia)}
<joint name="{name}" axis="{numbers(*axis)}"/>
"""
    if link.shape:
        radius, end = link.shape
        text += f"""<geom name="{name}" type="capsule" size="{radius}" fromto="0 0 {-radius / 2} 0 0 {end}"
 {ROBOT_CONTACT} rgba="0.7 0.7 0.7 1"/>
"""
    return text


def foot_text(body: Body, side: str) -> str:
    """Return the sole: four spheres that touch, a box to look at, and the foot's site on the ground."""
    radius = 0.01
    corners = [(x, y) for x in (-body.heel, body.toe) for y in (body.half_width, -body.half_width)]
    spheres = "".join(
        f'<geom name="{side}_sole{i}" type="sphere" size="{radius}" '
        f'pos="{numbers(x, y, radius - body.sole)}" {FOOT}/>\n'
        for i, (x, y) in enumerate(corners)
    )
    size, middle = numbers((body.toe + body.heel) / 2, body.half_width, 0.01), (body.toe - body.heel) / 2
    return f"""{spheres}<geom type="box" size="{size}" pos="{numbers(middle, 0, 0.012 - body.sole)}" {NO_CONTACT}
 rgba="0.1 0.1 0.1 1"/>
<site name="{side}_foot" pos="{numbers(middle, 0, -body.sole)}" size="0.01"/>
"""
