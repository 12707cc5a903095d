"""Penalties of restless actions."""

from __future__ import annotations

from torch import Tensor

from rl_lab.robots.mdp.state import RobotState


def action_rate(state: RobotState) -> Tensor:
    """Return the sum of (a_t - a_t-1)^2."""
    return (state.actions - state.last_actions).square().sum(-1)


def action_acceleration(state: RobotState) -> Tensor:
    """Return the sum of (a_t - 2 a_t-1 + a_t-2)^2."""
    return (state.actions - 2.0 * state.last_actions + state.older_actions).square().sum(-1)


def action_smoothness(state: RobotState) -> Tensor:
    """Return rate and acceleration of the actions, and 0.05 times the sum of |a|."""
    return action_rate(state) + action_acceleration(state) + 0.05 * state.actions.abs().sum(-1)
