"""Random robot states, as tensors for the terms and as float64 arrays of one world for the naive loops."""

from dataclasses import fields

import numpy as np
import torch

from rl_lab.robots.mdp.state import Gait, RobotFacts, RobotState

JOINTS = ("left_hip", "left_knee", "left_ankle", "right_hip", "right_knee", "right_ankle")
FEET = ("left_foot", "right_foot")
BODIES = ("base", "left_shank", "right_shank")
TOUCHING = ("base", "left_shank", "right_shank")
DT = 0.02


def facts(**changes):
    defaults = {
        "joints": JOINTS,
        "feet": FEET,
        "bodies": BODIES,
        "touching": TOUCHING,
        "dt": DT,
        "default_pos": torch.tensor([-0.2, 0.4, -0.2, -0.2, 0.4, -0.2]),
        "low": torch.full((6,), -0.5),
        "high": torch.full((6,), 0.6),
        "effort": torch.full((6,), 20.0),
        "max_speed": torch.full((6,), 8.0),
        "base_height": 0.8,
    }
    return RobotFacts(**{**defaults, **changes})


def gait(**changes):
    defaults = {
        "cycle_s": 0.8,
        "offsets": torch.tensor([0.0, 0.5]),
        "stance": 0.6,
        "legs": torch.tensor([[0, 1, 2], [3, 4, 5]]),
        "amplitudes": torch.tensor([-0.26, 0.52, -0.26]),
    }
    return Gait(**{**defaults, **changes})


def random_state(seed=0, count=64, **changes):
    """Return a state whose numbers lie on both sides of every threshold."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return torch.randn(count, *shape, generator=rng) * scale

    def uniform(*shape, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(count, *shape, generator=rng)

    def flags(*shape):
        return torch.rand(count, *shape, generator=rng) < 0.5

    quat = normal(4) * torch.tensor([1.0, 0.3, 0.3, 1.0])
    command = normal(3) * flags(1)  # half of the worlds stand
    values = {
        "facts": facts(),
        "base_pos": normal(3),
        "base_quat": quat / quat.norm(dim=-1, keepdim=True),
        "lin_vel": normal(3),
        "ang_vel": normal(3),
        "gravity": torch.nn.functional.normalize(normal(3), dim=-1),
        "world_vel": normal(6),
        "last_world_vel": normal(6),
        "joint_pos": normal(6, scale=0.6),
        "joint_vel": normal(6, scale=6.0),
        "last_joint_vel": normal(6, scale=6.0),
        "torques": normal(6, scale=15.0),
        "actions": normal(6),
        "last_actions": normal(6),
        "older_actions": normal(6),
        "command": command,
        "phase": uniform(),
        "body_pos": normal(3, 3, scale=0.3),
        "foot_pos": normal(2, 3, scale=0.3),
        "foot_vel": normal(2, 3),
        "foot_force": normal(2, 3, scale=300.0) * torch.tensor([1.0, 1.0, 0.3]),
        "foot_height": uniform(2, high=0.15),
        "contact": flags(2),
        "first_contact": flags(2),
        "air_time": uniform(2),
        "contact_time": uniform(2),
        "flight_time": uniform(2),
        "stance_time": uniform(2),
        "peak_height": uniform(2, high=0.2),
        "touch": uniform(3, high=2.0) * flags(3),
        "angular_momentum": normal(3),
        "self_force": uniform(4, high=20.0),
        "ground": normal(),
        "heights": normal(4),
        "terminated": flags(),
        "joint_offset": normal(6, scale=0.03),
        "push": normal(6),
        "gait": gait(),
        "randomized": {"friction": uniform(1)},
    }
    return RobotState(**{**values, **changes})


def worlds(state):
    """Yield each world as a namespace of float64 arrays."""
    tensors = {f.name: getattr(state, f.name) for f in fields(state)}
    tensors = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    for index in range(len(state.base_pos)):
        yield World(**{name: np.asarray(value[index].double().numpy()) for name, value in tensors.items()})


class World:
    def __init__(self, **arrays):
        self.__dict__.update(arrays)
