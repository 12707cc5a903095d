"""The geoms that feet stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from rl_lab.core import ConfigError
from rl_lab.robots.mdp.world import World
from rl_lab.robots.models.layout import Layout
from rl_lab.robots.models.robot import Robot

if TYPE_CHECKING:
    import mujoco


def foot_geoms(world: World) -> Tensor:
    """Return the geoms that feet stand on: those of the feet's names, else all of the bodies that carry the feet."""
    return world.columns("foot geoms", lambda: foot_geom_ids(world.model, world.robot, world.layout))


def foot_geom_ids(model: mujoco.MjModel, robot: Robot, layout: Layout) -> list[int]:
    """Return the same on the host, foot by foot; a robot without feet touches the ground with all it has."""
    names = [model.geom(i).name for i in range(model.ngeom)]
    solid = [i for i in range(model.ngeom) if model.geom_contype[i] or model.geom_conaffinity[i]]
    chosen: list[int] = []
    for foot, site in zip(robot.feet, layout.feet, strict=True):
        body = model.site_bodyid[site]
        own = [i for i in solid if model.geom_bodyid[i] == body]
        if not own:
            raise ConfigError(f"foot {foot!r} of robot {robot.name!r}: its body has no geom that touches anything")
        chosen += [names.index(foot)] if foot in names else own
    return chosen or [i for i in solid if model.geom_bodyid[i]]
