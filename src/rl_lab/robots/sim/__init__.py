"""Batched physics: MuJoCo on threads and mujoco_warp on a GPU behind one interface."""

from rl_lab.robots.sim.interface import BatchSim, make_sim

__all__ = ["BatchSim", "make_sim"]
