"""Sizes of the two arms of the pick-and-place cell, which the model, the commands and the expert share.

An arm stands at its base and looks along +y. Its joints: yaw of the base, pitch of shoulder, pitch of elbow, roll of
the forearm, pitch of the wrist, roll of the hand. At zero the upper arm stands upright and the rest points forward.
"""

from __future__ import annotations

import math

SIDES = ("left", "right")
BASES = {"left": (-0.25, -0.35), "right": (0.25, -0.35)}  # metres
SHOULDER, UPPER, FOREARM, TOOL = 0.18, 0.27, 0.30, 0.11  # metres: its height, and lengths up to between the fingers
JOINTS = ("yaw", "shoulder", "elbow", "roll", "wrist", "hand")
LOW = (-2.8, -1.6, -0.8, -3.0, -2.0, -3.0, 0.0)  # radians; the last one is the gripper: 0 closed, 1 open
HIGH = (2.8, 1.9, 2.2, 3.0, 2.0, 3.0, 1.0)
MAX_STEP = (0.2, 0.2, 0.2, 0.2, 0.2, 0.3, 1.0)  # per control step, of 0.1 s
HOME = (0.0, 0.15, 0.45, 0.0, math.pi / 2 - 0.6, math.pi / 2, 1.0)  # tool down, in front of the base
CLOSED, OPENED = -0.030, 0.005  # metres that a finger slides
BIN = (0.0, 0.05)  # centre, metres
BIN_HALF, BIN_HEIGHT = 0.09, 0.06
OBJECT = 0.018  # half of the side of a cube, metres
POSE_LOW = (-0.80, -0.80, -0.02)  # where a tool may be sent, metres: no deeper than fingers that press on the table
POSE_HIGH = (0.80, 0.50, 1.00)
