"""Pieces of MJCF text that the built-in robots are made of."""

from __future__ import annotations

ROBOT_CONTACT = 'contype="0" conaffinity="1"'  # touches the terrain, never itself
NO_CONTACT = 'contype="0" conaffinity="0"'
FOOT = f'{ROBOT_CONTACT} condim="3" friction="0.8 0.02 0.01" priority="1" solref="0.01 1"'  # its own friction counts


def numbers(*values: float) -> str:
    """Return numbers as an attribute's text."""
    return " ".join(f"{value:.10g}" for value in values)


def inertial(mass: float, com: tuple[float, float, float], inertia: tuple[float, float, float]) -> str:
    """Return a body's inertial element; the inertia is that about the axes of the body through its centre of mass."""
    return f'<inertial mass="{mass:.10g}" pos="{numbers(*com)}" diaginertia="{numbers(*inertia)}"/>'


def rod_inertia(mass: float, radius: float, length: float) -> tuple[float, float, float]:
    """Return the moments of inertia of a solid cylinder along z."""
    across = mass * (3 * radius**2 + length**2) / 12
    return across, across, mass * radius**2 / 2


def robot_mjcf(name: str, base: str) -> str:
    """Return a whole MJCF document around the text of the base body."""
    return (
        f'<mujoco model="{name}"><compiler angle="radian" autolimits="true"/>\n'
        f'<default><geom friction="0.6"/></default>\n<worldbody>\n{base}</worldbody></mujoco>\n'
    )
