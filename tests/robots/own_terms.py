"""A term of a user's own, as docs/legged.md has it."""

from torch import Tensor

from rl_lab.robots.mdp.state import RobotState


def calm_knees(state: RobotState, joints: Tensor, limit: float = 5.0) -> Tensor:
    """Return how far these joints are faster than `limit` rad/s."""
    return (state.joint_vel[:, joints].abs() - limit).clamp_min(0.0).sum(-1)


def front_feet(state: RobotState) -> Tensor:
    """Return the heights of the first two feet, [N, 2]."""
    return state.foot_height[:, :2]
