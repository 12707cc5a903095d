"""What terms read: a robot per world as tensors, and the names and constants behind their columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class RobotFacts:
    """Names and constants of a robot. Columns of joints are in action order, those of feet and bodies as named here."""

    joints: tuple[str, ...]
    feet: tuple[str, ...]
    bodies: tuple[str, ...]  # all of the robot, the base first
    touching: tuple[str, ...]  # bodies whose contacts are sensed, feet apart
    dt: float  # seconds per control step
    default_pos: Tensor  # [J] rad
    low: Tensor  # [J] soft limits of position
    high: Tensor  # [J]
    effort: Tensor  # [J] N m
    max_speed: Tensor  # [J] rad/s
    base_height: float  # m, standing


@dataclass(frozen=True)
class Gait:
    """When each foot swings, and where the joints of a leg are then.

    A foot stands while its own phase, the cycle's plus the foot's offset, is below `stance`.
    """

    cycle_s: float
    offsets: Tensor  # [F] in cycles
    stance: float  # share of the cycle
    legs: Tensor  # [F, K] columns of the reference's joints (hip, knee, ankle); K is 0 without a reference
    amplitudes: Tensor  # [K] rad at mid-swing


@dataclass
class RobotState:
    """One moment of all worlds. Terms read it and never write to it; velocities are those of the base's own frame."""

    facts: RobotFacts
    base_pos: Tensor  # [N, 3] world
    base_quat: Tensor  # [N, 4] w x y z
    lin_vel: Tensor  # [N, 3]
    ang_vel: Tensor  # [N, 3]
    gravity: Tensor  # [N, 3] unit vector
    world_vel: Tensor  # [N, 6] linear in the world, angular in the body: as MuJoCo has it
    last_world_vel: Tensor  # [N, 6] of the step before
    joint_pos: Tensor  # [N, J]
    joint_vel: Tensor  # [N, J]
    last_joint_vel: Tensor  # [N, J]
    torques: Tensor  # [N, J]
    actions: Tensor  # [N, J] as the policy gave them
    last_actions: Tensor  # [N, J]
    older_actions: Tensor  # [N, J] two steps before
    command: Tensor  # [N, 3] vx, vy, yaw rate
    phase: Tensor  # [N] of the gait's cycle, in [0, 1)
    body_pos: Tensor  # [N, B, 3] world
    foot_pos: Tensor  # [N, F, 3] world
    foot_vel: Tensor  # [N, F, 3] world
    foot_force: Tensor  # [N, F, 3] world
    foot_height: Tensor  # [N, F] of the sole above the ground
    contact: Tensor  # [N, F] bool
    first_contact: Tensor  # [N, F] bool: landed in this step
    air_time: Tensor  # [N, F] s since the foot left the ground; 0 in contact
    contact_time: Tensor  # [N, F] s since it landed; 0 in the air
    flight_time: Tensor  # [N, F] s that the last flight took; where a foot lands, that of the flight which ends
    stance_time: Tensor  # [N, F] s that the last stance took
    peak_height: Tensor  # [N, F] m, highest of the present or last flight
    touch: Tensor  # [N, T] N on the bodies of `facts.touching`
    angular_momentum: Tensor  # [N, 3] kg m^2/s of the robot about its centre of mass; 0 where no reward term reads it
    self_force: (
        Tensor  # [N, S] N of its strongest contact with itself after each physics step; 0 where no term reads it
    )
    ground: Tensor  # [N] height of the ground below the base
    heights: Tensor  # [N, P] of the ground at the scan's points
    terminated: Tensor  # [N] bool: the task ended with this step
    joint_offset: Tensor  # [N, J] rad that encoders read too much
    push: Tensor  # [N, 6] velocity that the last push added
    gait: Gait
    randomized: dict[str, Tensor] = field(default_factory=dict)  # what events have drawn, [N, ...], by the event's name
