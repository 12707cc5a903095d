"""What a robot is: its MJCF text, its joints in the order of the actions, and the names a task needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal, get_args

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.managers.terms import check_keys, number, numbers

Control = Literal["position", "velocity", "torque", "torque_speed"]
NUMBERS = ("kp", "kd", "default", "effort", "max_speed", "action_scale", "armature", "frictionloss", "damping")


@dataclass(frozen=True)
class Joint:
    """One actuated joint.

    Args:
        name: The joint's name in the robot's MJCF.
        kp: Stiffness in N m/rad of position and torque_speed control.
        kd: Damping in N m s/rad; the gain of velocity control.
        default: The joint's angle in rad (or distance in m) in the default pose.
        effort: The largest torque in N m (or force in N), also the stall torque of torque_speed control.
        max_speed: The no-load speed in rad/s of torque_speed control.
        action_scale: What an action of 1 adds to the target: rad, rad/s or N m.
        armature: Reflected rotor inertia in kg m^2.
        frictionloss: Dry friction in N m.
        damping: Passive viscous damping in N m s/rad.
        range: The joint's limits in rad (or m); None leaves what the MJCF says.
        control: position (PD), torque_speed (PD whose torque falls to zero at max_speed), velocity or torque.
    """

    name: str
    kp: float = 0.0
    kd: float = 0.0
    default: float = 0.0
    effort: float = 0.0
    max_speed: float = 0.0
    action_scale: float = 0.25
    armature: float = 0.0
    frictionloss: float = 0.0
    damping: float = 0.0
    range: tuple[float, float] | None = None
    control: Control = "position"

    def __post_init__(self) -> None:
        if self.control not in get_args(Control):
            raise ConfigError(unknown_name(f"control of joint {self.name!r}", self.control, get_args(Control)))
        for name in NUMBERS:
            number(f"joint {self.name!r}: {name}", vars(self)[name])
        if self.range is not None and len(numbers(f"joint {self.name!r}: range", self.range)) != 2:
            raise ConfigError(f"joint {self.name!r}: range must be two numbers, not {self.range!r}")
        needed = {"position": ("kp", "effort"), "velocity": ("kd", "effort"), "torque": ("effort",)}
        for gain in needed.get(self.control, ("kp", "effort", "max_speed")):
            if not vars(self)[gain] > 0:
                raise ConfigError(f"joint {self.name!r} needs {gain} > 0 for {self.control} control")


@dataclass(frozen=True)
class Robot:
    """A robot alone, without floor, actuators and sensors: `compile_scene` adds those.

    Args:
        name: The robot's name.
        mjcf: The robot as MJCF text: one tree of bodies under the world, whose root has a free joint.
        joints: The actuated joints in the order of the actions.
        base: The root body; it carries the site "imu".
        feet: Names of foot sites. The contact of a foot is that of the geom of the same name, else of the site's body.
        penalised: Bodies whose contacts are measured because a reward may forbid them.
        terminating: Bodies whose contacts are measured because they may end the episode.
        base_height: Height of the base in m when the robot stands in its default pose.
        spawn_height: Height of the base in m in the keyframe "home"; 0 takes base_height.
        mirror: Left-right symmetry: joint -> (the joint it mirrors, the sign of the angle).
        soft_limit: Share of each joint's range that counts as inside its soft limits.
        assets: Files the MJCF refers to (meshes), by name.
    """

    name: str
    mjcf: str
    joints: tuple[Joint, ...]
    base: str
    feet: tuple[str, ...] = ()
    penalised: tuple[str, ...] = ()
    terminating: tuple[str, ...] = ()
    base_height: float = 0.0
    spawn_height: float = 0.0
    mirror: Mapping[str, tuple[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    soft_limit: float = 0.9
    assets: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The actuated joints' names in the order of the actions."""
        return tuple(joint.name for joint in self.joints)

    @property
    def contact_names(self) -> tuple[str, ...]:
        """The feet and bodies whose contact force is measured, each once: feet, then penalised, then terminating."""
        return tuple(dict.fromkeys((*self.feet, *self.penalised, *self.terminating)))

    def joint_ids(self, *patterns: str) -> tuple[int, ...]:
        """Return the action indices of the joints that match any of the names or `*` patterns, in action order."""
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in self.joint_names):
                raise ConfigError(unknown_name(f"joint of robot {self.name!r}", pattern, self.joint_names))
        return tuple(i for i, name in enumerate(self.joint_names) if any(fnmatchcase(name, p) for p in patterns))

    def mirrored_joints(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return (source, sign): the mirror image of joint values q is `q[source] * sign`."""
        if set(self.mirror) != set(self.joint_names):
            raise ConfigError(f"robot {self.name!r} has no left-right mirror for all of its joints")
        pairs = [self.mirror[name] for name in self.joint_names]
        return tuple(self.joint_names.index(other) for other, _ in pairs), tuple(sign for _, sign in pairs)

    def with_joints(self, changes: Mapping[str, Mapping[str, Any]]) -> Robot:
        """Return this robot with fields of its joints changed, by joint name or `*` pattern."""
        joints = list(self.joints)
        known = [name for name in vars(joints[0]) if name != "name"]
        for pattern, values in changes.items():
            check_keys(f"joints {pattern!r}", values, known)
            for i in self.joint_ids(pattern):
                joints[i] = replace(joints[i], **values)
        return replace(self, joints=tuple(joints))
