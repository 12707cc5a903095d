"""What whoever runs a policy on the robot itself must know of the task it was trained in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from rl_lab.robots.legged_env import LeggedEnv


def describe_task(env: LeggedEnv, scan: Tensor) -> dict[str, Any]:
    """Return joints, gains, rates, observation terms, command ranges, gait and height scan as a plain tree."""
    joints, gait = env.robot.joints, env.last_state.gait
    columns = {
        key: [vars(joint)[key] for joint in joints]
        for key in ("kp", "kd", "default", "action_scale", "effort", "control")
    }
    return {
        "robot": env.robot.name,
        "joint_names": list(env.robot.joint_names),
        **columns,
        "action_clip": env.action_clip,
        "control_hz": 1.0 / env.world.facts.dt,
        "physics_hz": 1.0 / float(env.world.model.opt.timestep),
        "observations": {name: group.describe() for name, group in env.observations.groups.items()},
        "command_names": ["vx", "vy", "yaw_rate"],
        "command_ranges": {axis: list(ends) for axis, ends in env.commands.ranges.items()},
        "gait_cycle_s": gait.cycle_s,
        "gait": {
            "feet": list(env.robot.feet),
            "offsets": gait.offsets.tolist(),  # in cycles, one per foot
            "stance": gait.stance,  # share of the cycle; a foot swings in the rest
        },
        "scan_points": scan.tolist(),  # m from the base, x ahead and y left in its heading; none: []
    }
