"""A 12-joint quadruped of primitive shapes with the masses, lengths and motors of the Unitree Go2."""

from __future__ import annotations

from rl_lab.robots.models.mjcf import FOOT, ROBOT_CONTACT, inertial, numbers, robot_mjcf
from rl_lab.robots.models.robot import Control, Joint, Robot

LEGS = {"FL": (1, 1), "FR": (1, -1), "RL": (-1, 1), "RR": (-1, -1)}  # forward and left signs
SEGMENT = 0.213  # m, thigh and calf
EFFORT = {"hip": 23.7, "thigh": 23.7, "calf": 45.43}  # N m
SPEED = {"hip": 30.1, "thigh": 30.1, "calf": 15.7}  # rad/s; the calf's gearing is 1.917 times the hip's


def quadruped(kp: float = 25.0, kd: float = 0.5, action_scale: float = 0.25, control: Control = "position") -> Robot:
    """Return the quadruped, 15.2 kg; joints leg by leg (FL, FR, RL, RR), each hip, thigh, calf.

    Args:
        kp: Stiffness of every joint in N m/rad.
        kd: Damping of every joint in N m s/rad.
        action_scale: Radians that an action of 1 adds to the default pose.
        control: How every joint is driven.
    """
    joints = []
    for leg, (front, left) in LEGS.items():
        default = {"hip": 0.1 * left, "thigh": 0.8 if front > 0 else 1.0, "calf": -1.5}
        ranges = {
            "hip": (-1.0472, 1.0472),
            "thigh": (-1.5708, 3.4907) if front > 0 else (-0.5236, 4.5379),
            "calf": (-2.7227, -0.83776),
        }
        joints += [
            Joint(
                name=f"{leg}_{part}_joint",
                kp=kp,
                kd=kd,
                default=default[part],
                effort=EFFORT[part],
                max_speed=SPEED[part],
                action_scale=action_scale,
                armature=0.01,
                frictionloss=0.2,
                damping=0.1,
                range=ranges[part],
                control=control,
            )
            for part in ("hip", "thigh", "calf")
        ]
    return Robot(
        name="quadruped",
        mjcf=robot_mjcf("quadruped", trunk()),
        joints=tuple(joints),
        base="base",
        feet=tuple(f"{leg}_foot" for leg in LEGS),
        penalised=tuple(f"{leg}_{part}" for leg in LEGS for part in ("thigh", "calf")),
        terminating=("base",),
        base_height=0.265,
        spawn_height=0.34,
        mirror=mirror(),
    )


def mirror() -> dict[str, tuple[str, float]]:
    """Return the left-right symmetry: hips (about x) change sign, thighs and calves (about y) do not."""
    other = {"FL": "FR", "FR": "FL", "RL": "RR", "RR": "RL"}
    signs = {"hip": -1.0, "thigh": 1.0, "calf": 1.0}
    return {f"{leg}_{part}_joint": (f"{other[leg]}_{part}_joint", sign) for leg in LEGS for part, sign in signs.items()}


def trunk() -> str:
    """Return the base body with its four legs."""
    legs = "".join(leg_text(name, front, left) for name, (front, left) in LEGS.items())
    return f"""<body name="base" pos="0 0 0.34"><freejoint name="root"/>
{inertial(6.921, (0.0211, 0, -0.0054), (0.0245, 0.0981, 0.1070))}
<geom name="trunk" type="box" size="0.1881 0.04675 0.057" {ROBOT_CONTACT} rgba="0.2 0.2 0.25 1"/>
<geom name="head" type="sphere" size="0.047" pos="0.293 0 -0.03" {ROBOT_CONTACT} rgba="0.9 0.6 0.1 1"/>
<site name="imu" pos="-0.0256 0 0.0423"/>
{legs}</body>
"""


def leg_text(name: str, front: int, left: int) -> str:
    """Return one leg: hip, thigh and calf with the foot."""
    return f"""<body name="{name}_hip" pos="{numbers(0.1934 * front, 0.0465 * left, 0)}">
{inertial(0.678, (-0.0054 * front, 0.00194 * left, -0.0001), (0.00048, 0.000884, 0.000596))}
<joint name="{name}_hip_joint" axis="1 0 0"/>
<geom name="{name}_hip" type="cylinder" size="0.046 0.02" pos="{numbers(0, 0.08 * left, 0)}" quat="1 1 0 0"
 {ROBOT_CONTACT} rgba="0.3 0.3 0.35 1"/>
<body name="{name}_thigh" pos="{numbers(0, 0.0955 * left, 0)}">
{inertial(1.152, (-0.00374, -0.0223 * left, -0.0327), (0.00584, 0.00595, 0.00088))}
<joint name="{name}_thigh_joint" axis="0 1 0"/>
<geom name="{name}_thigh" type="capsule" size="0.017" fromto="0 0 -0.03 0 0 -0.2" {ROBOT_CONTACT}
 rgba="0.7 0.7 0.7 1"/>
<body name="{name}_calf" pos="{numbers(0, 0, -SEGMENT)}">
{inertial(0.241352, (0.0063, 0, -0.1414), (0.00149, 0.00146, 0.000053))}
<joint name="{name}_calf_joint" axis="0 1 0"/>
<geom name="{name}_calf" type="capsule" size="0.013" fromto="0.01 0 -0.02 0.012 0 -0.17" {ROBOT_CONTACT}
 rgba="0.7 0.7 0.7 1"/>
<geom name="{name}_foot" type="sphere" size="0.022" pos="{numbers(-0.002, 0, -SEGMENT)}" {FOOT} rgba="0.1 0.1 0.1 1"/>
<site name="{name}_foot" pos="{numbers(-0.002, 0, -SEGMENT)}" size="0.01"/>
</body></body></body>
"""
