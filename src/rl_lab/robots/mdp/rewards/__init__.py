"""The library of reward terms, by kind. Penalties are positive numbers here: their weights in YAML are negative."""

from collections.abc import Callable
from typing import Any

from rl_lab.robots.mdp.rewards import actions, base, feet, gait, joints, tracking

MODULES = (tracking, base, joints, actions, feet, gait)
LEAST_FEET = {  # that a robot needs for a term; 1 for all others of these two modules
    feet.feet_distance: 2,
    feet.air_time_variance: 2,
    feet.body_distance: 0,
}


def least_feet(function: Callable[..., Any]) -> int:
    """Return how many feet a robot needs for a term."""
    return LEAST_FEET.get(function, int(function.__module__ in (feet.__name__, gait.__name__)))
