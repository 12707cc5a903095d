"""The biped presets: Unitree G1, EngineAI PM01 and SA01, with their numbers and their joint orders."""

from __future__ import annotations

from rl_lab.robots.models.biped import Body, Link, biped
from rl_lab.robots.models.robot import Joint, Robot

X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def motor(
    name: str,
    gains: tuple[float, float],
    default: float,
    limits: tuple[float, float],
    effort: float,
    speed: float,
    armature: float,
    action_scale: float,
) -> Joint:
    """Return a leg joint of the left side, its name without the side."""
    return Joint(
        name=name,
        kp=gains[0],
        kd=gains[1],
        default=default,
        range=limits,
        effort=effort,
        max_speed=speed,
        armature=armature,
        action_scale=action_scale,
        frictionloss=0.1,
        damping=0.05,
    )


def g1() -> Robot:
    """Return the Unitree G1's legs under a lumped upper body, 33.3 kg; order pitch, roll, yaw, knee, ankles."""
    tilt, scale = 0.174533, 0.25  # the hip roll link is tilted by 10 degrees, and the knee back again
    links = (
        Link(
            motor("hip_pitch", (100, 2), -0.1, (-2.5307, 2.8798), 88, 32, 0.0103, scale),
            *(Y, (0, 0.0645, -0.1027), 1.35, (0.0027, 0.0478, -0.026), (0.0018, 0.0015, 0.0012)),
        ),
        Link(
            motor("hip_roll", (100, 2), 0.0, (-0.5236, 2.9671), 139, 20, 0.0251, scale),
            *(X, (0, 0.052, -0.0305), 1.52, (0.03, -0.001, -0.088), (0.0025, 0.0024, 0.0015)),
            pitch=-tilt,
        ),
        Link(
            motor("hip_yaw", (100, 2), 0.0, (-2.7576, 2.7576), 88, 32, 0.0103, scale),
            *(Z, (0.025, 0, -0.1241), 1.702, (-0.0577, -0.011, -0.1508), (0.0078, 0.0072, 0.0016), (0.05, -0.14)),
        ),
        Link(
            motor("knee", (150, 4), 0.3, (-0.0873, 2.8798), 139, 20, 0.0251, scale),
            *(Y, (-0.0783, 0.0021, -0.1773), 1.932, (0.0055, 0.004, -0.1207), (0.0114, 0.0113, 0.0015), (0.04, -0.25)),
            pitch=tilt,
        ),
        Link(
            motor("ankle_pitch", (40, 2), -0.2, (-0.8727, 0.5236), 50, 37, 0.0072, scale),
            *(Y, (0, 0, -0.30001), 0.074, (-0.0073, 0, 0.0111), (1.9e-5, 1.4e-5, 7e-6)),
        ),
        Link(
            motor("ankle_roll", (40, 2), 0.0, (-0.2618, 0.2618), 50, 37, 0.0072, scale),
            *(X, (0, 0, -0.0176), 0.608, (0.0265, 0, -0.0164), (0.0002, 0.0016, 0.0017)),
        ),
    )
    upper = Body(
        mass=33.34 - 2 * 7.186,
        com=(0.0, 0.0, 0.1),
        inertia=(0.45, 0.38, 0.12),
        sole=0.04,
        toe=0.12,
        heel=0.05,
        half_width=0.03,
        base_height=0.789,
        imu=(0.045, 0.0, -0.083),
    )
    return biped("g1", upper, links)


def pm01() -> Robot:
    """Return the EngineAI PM01's legs under a lumped upper body, 40.9 kg; order pitch, roll, yaw, knee, ankles."""
    scale, big, small = 0.5, 0.0453, 0.0067
    canted = (0.0, 0.96593, -0.25882)  # the hip pitch axis leans by 15 degrees
    links = (
        Link(
            motor("hip_pitch", (70, 7), -0.24, (-3.141, 2.443), 164, 26.3, big, scale),
            *(canted, (0.01541, 0.07614, -0.06121), 1.686),
        ),
        Link(
            motor("hip_roll", (50, 5), 0.0, (-0.436, 2.094), 164, 26.3, big, scale),
            *(X, (0.048, 0.0494, -0.0132), 0.633),
        ),
        Link(
            motor("hip_yaw", (50, 5), 0.0, (-1.57, 4.014), 52, 35.2, small, scale),
            *(Z, (-0.0314, -0.0016, -0.0860), 1.858, (0, 0, -0.1), None, (0.05, -0.2)),
        ),
        Link(
            motor("knee", (70, 7), 0.48, (-0.3491, 2.3911), 164, 26.3, big, scale),
            *(Y, (-0.0260, 0, -0.23655), 4.295, (0, 0, -0.12), None, (0.045, -0.31)),
        ),
        Link(
            motor("ankle_pitch", (20, 0.2), -0.24, (-0.6807, 0.7243), 52, 35.2, small, scale),
            *(Y, (-0.0268, 0, -0.36305), 0.115),
        ),
        Link(
            motor("ankle_roll", (20, 0.2), 0.0, (-0.2618, 0.2618), 52, 35.2, small, scale),
            *(X, (0, 0, -0.015), 0.718, (0.03, 0, -0.025), (0.0004, 0.002, 0.002)),
        ),
    )
    upper = Body(
        mass=40.92 - 2 * 9.305,
        com=(0.01, 0.0, 0.195),
        inertia=(0.65, 0.55, 0.24),
        sole=0.0463,
        toe=0.13,
        heel=0.07,
        half_width=0.04,
        base_height=0.797,
    )
    return biped("pm01", upper, links)


def sa01() -> Robot:
    """Return the EngineAI SA01, 33.1 kg; order roll, yaw, pitch, knee, ankles."""
    scale, big, small = 0.5, 0.03, 0.0025
    links = (
        Link(motor("hip_roll", (50, 5), 0.0, (-0.523, 0.523), 140, 25, big, scale), X, (0, 0.075, 0), 1.659),
        Link(motor("hip_yaw", (50, 5), 0.0, (-0.3, 0.3), 140, 25, big, scale), Z, (0, 0, 0), 1.801, (0, 0, -0.08)),
        Link(
            motor("hip_pitch", (70, 7), -0.24, (-1.204, 1.204), 140, 25, big, scale),
            *(Y, (0, 0, -0.1311), 3.930, (0, 0, -0.125), None, (0.04, -0.25)),
        ),
        Link(
            motor("knee", (70, 7), 0.48, (0.0, 2.268), 140, 25, big, scale),
            *(Y, (0, 0, -0.30), 2.725, (0, 0, -0.14), None, (0.03, -0.32)),
        ),
        Link(
            motor("ankle_pitch", (20, 0.2), -0.24, (-1.0, 0.6), 24, 31, small, scale),
            *(Y, (0, 0, -0.37), 0.161),
        ),
        Link(
            motor("ankle_roll", (20, 0.2), 0.0, (-0.6, 0.6), 24, 31, small, scale),
            *(X, (0, 0, 0), 1.193, (0.03, 0, -0.03), (0.0008, 0.004, 0.004)),
        ),
    )
    upper = Body(
        mass=10.176,
        com=(-0.030, 0.0, 0.107),
        inertia=(0.11, 0.11, 0.068),  # a box of 0.2 x 0.2 x 0.3 m
        sole=0.05,
        toe=0.15,
        heel=0.07,
        half_width=0.04,
        base_height=0.832,
    )
    return biped("sa01", upper, links)
