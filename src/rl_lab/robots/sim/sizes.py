"""How much room a scene needs on a GPU, and which constants follow from which model fields."""

from __future__ import annotations

import mujoco
import numpy as np

CONSTANTS = ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0")
DERIVED = {  # what `recompute` writes for each field, so needs a value per world too
    **dict.fromkeys(("body_mass", "body_inertia", "body_ipos", "body_iquat", "body_pos", "body_quat"), CONSTANTS),
    **dict.fromkeys(("dof_armature", "qpos0"), CONSTANTS),
    "geom_size": (*CONSTANTS, "geom_aabb", "geom_rbound"),
}
TOUCHES = {  # most contacts of a shape with a plane
    int(mujoco.mjtGeom.mjGEOM_SPHERE): 1,
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): 2,
    int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): 1,
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): 4,
    int(mujoco.mjtGeom.mjGEOM_BOX): 4,
    int(mujoco.mjtGeom.mjGEOM_MESH): 4,
}


def contact_room(model: mujoco.MjModel) -> int:
    """Return the contacts per world to keep room for: half of what a plane could touch, more on boxes and triangles."""
    moving = (model.geom_bodyid > 0) & ((model.geom_contype > 0) | (model.geom_conaffinity > 0))
    touches = sum(TOUCHES.get(int(kind), 1) for kind in model.geom_type[moving])
    has_boxes = np.count_nonzero(model.geom_bodyid == 0) > 1  # a foot at an edge touches several
    return max(16, 2 * touches if model.nhfield else 3 * touches // 2 if has_boxes else touches // 2)


def constraint_room(model: mujoco.MjModel) -> int:
    """Return the constraint rows per world to keep room for: contacts, joint limits and joint friction."""
    rows = 4 if model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL else 3
    friction = int(np.count_nonzero(model.dof_frictionloss))
    needed = contact_room(model) * rows + friction + int(model.jnt_limited.sum())
    return -(-needed // 16) * 16
