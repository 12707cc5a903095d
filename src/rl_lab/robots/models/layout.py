"""Where a robot's quantities lie in the fields of a compiled model, all by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.models.robot import Robot

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True)
class Layout:
    """Indices of one robot in the fields of its compiled scene; joints in the order of the actions."""

    qpos: tuple[int, ...]  # columns of qpos, one per joint
    dof: tuple[int, ...]  # columns of qvel, qacc, qfrc_*
    actuator: tuple[int, ...]  # columns of ctrl and actuator_force
    joint: tuple[int, ...]  # rows of jnt_range
    base: int  # body; qpos[0:7] is its position and quaternion (w, x, y, z), qvel[0:3] world, qvel[3:6] body frame
    imu: int  # site
    feet: tuple[int, ...]  # sites, in the order of robot.feet
    gyro: slice  # columns of sensordata, in the frame of the imu
    velocimeter: slice
    accelerometer: slice
    orientation: slice  # quaternion (w, x, y, z)
    contacts: dict[str, tuple[slice, ...]]  # name in robot.contact_names -> contact force on it, world frame, 3 each


def layout_of(model: mujoco.MjModel, robot: Robot) -> Layout:
    """Return where `robot` lies in `model`."""
    joints = [joint_id(model, name) for name in robot.joint_names]
    return Layout(
        qpos=tuple(int(model.jnt_qposadr[j]) for j in joints),
        dof=tuple(int(model.jnt_dofadr[j]) for j in joints),
        actuator=tuple(int(model.actuator(name).id) for name in robot.joint_names),
        joint=tuple(joints),
        base=body_id(model, robot.base),
        imu=int(model.site("imu").id),
        feet=tuple(int(model.site(name).id) for name in robot.feet),
        gyro=sensor_columns(model, "gyro"),
        velocimeter=sensor_columns(model, "velocimeter"),
        accelerometer=sensor_columns(model, "accelerometer"),
        orientation=sensor_columns(model, "orientation"),
        contacts={name: contact_columns(model, name) for name in robot.contact_names},
    )


def has_sensor(model: mujoco.MjModel, name: str) -> bool:
    """Return whether there is a sensor of this name."""
    return name in [model.sensor(i).name for i in range(model.nsensor)]


def sensor_columns(model: mujoco.MjModel, name: str) -> slice:
    """Return the columns of a sensor in sensordata."""
    sensors = [model.sensor(i).name for i in range(model.nsensor)]
    if name not in sensors:
        raise ConfigError(unknown_name("sensor", name, sensors))
    start = int(model.sensor_adr[sensors.index(name)])
    return slice(start, start + int(model.sensor_dim[sensors.index(name)]))


def contact_columns(model: mujoco.MjModel, name: str) -> tuple[slice, ...]:
    """Return the columns of all contact-force sensors of a foot or body."""
    own = f"contact/{name}"
    sensors = [model.sensor(i).name for i in range(model.nsensor)]
    found = [sensor for sensor in sensors if sensor == own or sensor.startswith(f"{own}/")]
    if not found:
        known = {sensor.split("/")[1] for sensor in sensors if sensor.startswith("contact/")}
        raise ConfigError(unknown_name("contact sensor of", name, known))
    return tuple(sensor_columns(model, sensor) for sensor in found)


def body_id(model: mujoco.MjModel, name: str) -> int:
    """Return the index of a body; an unknown one lists those there are."""
    names = [model.body(i).name for i in range(1, model.nbody)]
    if name not in names:
        raise ConfigError(unknown_name("body", name, names))
    return names.index(name) + 1


def joint_id(model: mujoco.MjModel, name: str) -> int:
    """Return the index of a joint; an unknown one lists those there are."""
    names = [model.joint(i).name for i in range(model.njnt)]
    if name not in names:
        raise ConfigError(unknown_name("joint", name, names))
    return names.index(name)
