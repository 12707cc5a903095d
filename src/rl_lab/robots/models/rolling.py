"""A spherical robot: a shell that a motor drives, and a pendulum that leans it into curves (rotunbot)."""

from __future__ import annotations

from dataclasses import replace

from rl_lab.robots.models.mjcf import NO_CONTACT, inertial, robot_mjcf
from rl_lab.robots.models.robot import Joint, Robot

RADIUS = 0.4  # m


def rotunbot(speed_scale: float = 8.0, tilt_scale: float = 0.5236) -> Robot:
    """Return the rolling robot, 30.1 kg; joints drive (about y, so that forward is +x) and tilt (about x).

    The centres of mass lie in the plane of symmetry, where the measured ones are up to 24 mm beside it.

    Args:
        speed_scale: Shell speed in rad/s relative to the inner frame that an action of 1 asks for.
        tilt_scale: Pendulum angle in rad that an action of 1 asks for.
    """
    motor = Joint("drive", kd=5.0, effort=12.0, max_speed=10.0, frictionloss=0.01, damping=0.1, control="velocity")
    drive = replace(motor, action_scale=speed_scale)
    limits = (-0.5236, 0.5236)
    tilt = replace(motor, name="tilt", kp=15.0, control="position", action_scale=tilt_scale, range=limits)
    return Robot(
        name="rotunbot",
        mjcf=robot_mjcf("rotunbot", frame()),
        joints=(drive, tilt),
        base="base",
        penalised=("shell",),
        base_height=RADIUS,
        mirror={"drive": ("drive", 1.0), "tilt": ("tilt", -1.0)},
    )


def frame() -> str:
    """Return the inner frame with shell and pendulum; only the shell touches anything."""
    return f"""<body name="base" pos="0 0 {RADIUS}"><freejoint name="root"/>
{inertial(13.521, (0, 0, -0.0083), (0.0989, 0.1172, 0.1048))}
<geom name="frame" type="cylinder" size="0.05 0.2" quat="1 1 0 0" {NO_CONTACT} rgba="0.8 0.1 0.1 1"/>
<site name="imu"/>
<body name="shell">{inertial(9.8965, (0, 0, 0), (0.618, 0.905, 0.619))}
<joint name="drive" axis="0 1 0"/>
<geom name="shell" type="sphere" size="{RADIUS}" contype="0" conaffinity="1" condim="3" friction="1 0.01 0.002"
 priority="1" rgba="0.8 0.8 0.9 0.35"/></body>
<body name="pendulum">{inertial(6.6648, (0, 0, -0.255), (0.0266, 0.0563, 0.0688))}
<joint name="tilt" axis="1 0 0"/>
<geom name="pendulum" type="sphere" size="0.08" pos="0 0 -0.255" {NO_CONTACT} rgba="0.1 0.2 0.9 1"/></body>
</body>
"""
