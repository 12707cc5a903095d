"""The robots that a config can name."""

from __future__ import annotations

from collections.abc import Callable

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.models.bipeds import g1, pm01, sa01
from rl_lab.robots.models.files import robot_from_file
from rl_lab.robots.models.quadruped import quadruped
from rl_lab.robots.models.robot import Robot
from rl_lab.robots.models.rolling import rotunbot

ROBOTS: dict[str, Callable[[], Robot]] = {
    "quadruped": quadruped,
    "g1": g1,
    "pm01": pm01,
    "sa01": sa01,
    "rotunbot": rotunbot,
}


def find_robot(name: str) -> Robot:
    """Return a robot by its name, or the one that a YAML file describes."""
    if name.endswith((".yaml", ".yml")):
        return robot_from_file(name)
    if name not in ROBOTS:
        raise ConfigError("environment.robot: " + unknown_name("robot", name, ROBOTS))
    return ROBOTS[name]()
