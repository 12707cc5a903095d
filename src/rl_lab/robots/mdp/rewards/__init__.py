"""The library of reward terms, by kind. Penalties are positive numbers here: their weights in YAML are negative."""

from rl_lab.robots.mdp.rewards import actions, base, feet, gait, joints, tracking

MODULES = (tracking, base, joints, actions, feet, gait)
