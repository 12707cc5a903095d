"""From a robot to a compiled scene: actuators, sensors, floor or terrain, solver settings and the keyframe "home"."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import mujoco

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.managers.terms import check_keys, not_negative, positive, whole
from rl_lab.robots.models.robot import Joint, Robot

if TYPE_CHECKING:
    from rl_lab.robots.terrain.terrain import Terrain

TERRAIN_GROUP, ROBOT_GROUP = 0, 1  # geom groups: rays see the terrain only
CONTACT_FORCE = 1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE)
LARGEST_FORCE, NET_FORCE = 2, 3  # a contact sensor's reductions
EXTRA_SENSORS = ("angular_momentum", "self_contact")
POSITION_INPUT = 1  # a dcmotor's controls: the target position only


@dataclass(frozen=True)
class Physics:
    """How a scene is simulated.

    Args:
        timestep: Seconds per substep.
        cone: Friction cone: `pyramidal` is faster, `elliptic` with impratio 10 lets a standing robot creep less.
        impratio: Ratio of frictional to normal constraint impedance.
        iterations: Most iterations of the Newton solver.
        ls_iterations: Most line-search iterations in each.
        actuator_delay: Seconds by which every actuator's input is late; a multiple of the timestep.
        max_actuator_delay: Longest delay that a per-world `actuator_delay` may be given; at least actuator_delay.
    """

    timestep: float = 0.005
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"
    impratio: float = 1.0
    iterations: int = 10
    ls_iterations: int = 20
    actuator_delay: float = 0.0
    max_actuator_delay: float = 0.0


def read_simulation(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what of `environment.simulation` is physics, and what are options of the backend."""
    own = ("backend", "num_threads", "deterministic", "contacts", "constraints")
    known = [field.name for field in fields(Physics)]
    check_keys("environment.simulation", config, (*own, *known))
    physics, options = ({key: config[key] for key in keys if key in config} for keys in (known, own))
    return physics, options


def compile_scene(
    robot: Robot, terrain: Terrain | None = None, physics: Physics | None = None, sensors: Collection[str] = ()
) -> mujoco.MjModel:
    """Return the model of `robot` on `terrain` (else on a plane) with its actuators in the order of the actions.

    `sensors` are those of EXTRA_SENSORS that something reads: they cost time.
    """
    check_physics(physics or Physics())
    spec = parse(robot)
    set_options(spec, physics or Physics())
    for geom in spec.geoms:
        geom.group = ROBOT_GROUP if geom.group == TERRAIN_GROUP else geom.group
    for joint in robot.joints:
        add_actuator(spec, joint, physics or Physics())
    add_sensors(spec, robot)
    add_extra_sensors(spec, robot, sensors)
    add_camera(spec, robot)
    if terrain is None:
        add_floor(spec)
    else:
        terrain.add_to(spec)
    return with_home(spec, robot)


def parse(robot: Robot) -> mujoco.MjSpec:
    """Return the robot's MJCF as a spec, its names checked."""
    try:
        spec = mujoco.MjSpec.from_string(robot.mjcf, assets=dict(robot.assets))
    except ValueError as error:
        raise ConfigError(f"robot {robot.name!r}: not readable as MJCF: {' '.join(str(error).split())}") from None
    joints = [joint.name for joint in spec.joints]
    if not robot.joints:
        raise ConfigError(f"robot {robot.name!r} has no actuated joints (joints in its file: {', '.join(joints)})")
    for name in robot.joint_names:
        if name not in joints:
            raise ConfigError(unknown_name(f"joint of robot {robot.name!r}", name, joints))
    bodies = [body.name for body in spec.bodies if body.name != "world"]
    for name in (robot.base, *robot.penalised, *robot.terminating):
        if name not in bodies:
            raise ConfigError(unknown_name(f"body of robot {robot.name!r}", name, bodies))
    sites = [site.name for site in spec.sites]
    for name in robot.feet:
        if name not in sites:
            raise ConfigError(unknown_name(f"foot site of robot {robot.name!r}", name, sites))
    return spec


def check_physics(physics: Physics) -> None:
    """Raise ConfigError for a setting that cannot be simulated, or would be as another."""
    path = "environment.simulation"
    positive(f"{path}.timestep", physics.timestep)
    positive(f"{path}.impratio", physics.impratio)
    whole(f"{path}.iterations", physics.iterations)
    whole(f"{path}.ls_iterations", physics.ls_iterations)
    not_negative(f"{path}.max_actuator_delay", physics.max_actuator_delay)
    steps = not_negative(f"{path}.actuator_delay", physics.actuator_delay) / physics.timestep
    if abs(steps - round(steps)) > 1e-6:
        delay, timestep = physics.actuator_delay, physics.timestep
        raise ConfigError(f"{path}.actuator_delay: {delay:g} s is no multiple of the timestep of {timestep:g} s")


def set_options(spec: mujoco.MjSpec, physics: Physics) -> None:
    """Write the solver settings, and picture settings that a software renderer can bear."""
    option = spec.option
    option.timestep, option.integrator = physics.timestep, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    cones = {"pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL, "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC}
    if physics.cone not in cones:
        raise ConfigError(unknown_name("friction cone", physics.cone, cones))
    option.cone, option.impratio = cones[physics.cone], physics.impratio
    option.iterations, option.ls_iterations = physics.iterations, physics.ls_iterations
    quality = spec.visual.quality
    quality.offsamples, quality.shadowsize, quality.numslices, quality.numstacks = 0, 0, 12, 8
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 1280, 720


def add_actuator(spec: mujoco.MjSpec, joint: Joint, physics: Physics) -> None:
    """Add the joint's actuator, whose input is the target; the joint gets its own numbers."""
    hinge = spec.joint(joint.name)
    hinge.armature, hinge.frictionloss, hinge.damping[0] = joint.armature, joint.frictionloss, joint.damping
    if joint.range is not None:
        hinge.range, hinge.limited = joint.range, mujoco.mjtLimited.mjLIMITED_TRUE
    actuator = spec.add_actuator(name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    if joint.control == "position":
        actuator.set_to_position(kp=joint.kp, kv=joint.kd)
    elif joint.control == "velocity":
        actuator.set_to_velocity(kv=joint.kd)
    elif joint.control == "torque":
        actuator.set_to_motor()
    else:  # a DC motor of constant 1: the largest voltage is the no-load speed, stall torque = voltage / resistance
        servo = [joint.kp, 0.0, joint.kd, 0.0, 0.0, joint.max_speed]
        actuator.set_to_dcmotor([1.0, 1.0], joint.max_speed / joint.effort, controller=servo, ctrlspec=POSITION_INPUT)
    actuator.forcerange, actuator.forcelimited = (-joint.effort, joint.effort), mujoco.mjtLimited.mjLIMITED_TRUE
    longest = max(physics.actuator_delay, physics.max_actuator_delay)
    if longest > 0:
        actuator.delay, actuator.nsample = physics.actuator_delay, round(longest / physics.timestep) + 1


def add_sensors(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Add an IMU on the base's site "imu" and a contact-force sensor for each of the robot's contact names."""
    base = spec.body(robot.base)
    if "imu" not in [site.name for site in spec.sites]:
        base.add_site(name="imu")
    site, sensor = mujoco.mjtObj.mjOBJ_SITE, mujoco.mjtSensor
    kinds = {
        "gyro": sensor.mjSENS_GYRO,
        "velocimeter": sensor.mjSENS_VELOCIMETER,
        "accelerometer": sensor.mjSENS_ACCELEROMETER,
        "orientation": sensor.mjSENS_FRAMEQUAT,
    }
    for taken in [own for own in spec.sensors if own.name in kinds]:
        spec.delete(taken)  # a file's own of the same name
    for name, kind in kinds.items():
        spec.add_sensor(name=name, type=kind, objtype=site, objname="imu")
    geoms = [geom.name for geom in spec.geoms]
    for foot in robot.feet:
        if foot in geoms:
            add_contact_sensor(spec, foot, mujoco.mjtObj.mjOBJ_GEOM, foot)
        else:
            add_contact_sensor(spec, foot, mujoco.mjtObj.mjOBJ_BODY, spec.site(foot).parent.name)
    for name in robot.contact_names[len(robot.feet) :]:
        add_body_contact_sensors(spec, robot, name)


def add_extra_sensors(spec: mujoco.MjSpec, robot: Robot, names: Collection[str]) -> None:
    """Add the angular momentum of the whole robot about its centre of mass, and its strongest contact with itself."""
    for taken in [own for own in spec.sensors if own.name in names]:
        spec.delete(taken)  # a file's own of the same name
    if "angular_momentum" in names:
        kind = mujoco.mjtSensor.mjSENS_SUBTREEANGMOM
        spec.add_sensor(name="angular_momentum", type=kind, objtype=mujoco.mjtObj.mjOBJ_BODY, objname=robot.base)
    if "self_contact" in names:
        spec.add_sensor(
            name="self_contact",
            type=mujoco.mjtSensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_XBODY,  # it and all below it
            objname=robot.base,
            reftype=mujoco.mjtObj.mjOBJ_XBODY,
            refname=robot.base,
            intprm=[CONTACT_FORCE, LARGEST_FORCE, 1],
        )


def add_body_contact_sensors(spec: mujoco.MjSpec, robot: Robot, name: str) -> None:
    """Add a contact-force sensor for a body; one for each other geom where the body also carries a foot."""
    body = spec.body(name)
    if not any(geom.name in robot.feet for geom in body.geoms):
        add_contact_sensor(spec, name, mujoco.mjtObj.mjOBJ_BODY, name)
        return
    for geom in [geom for geom in body.geoms if geom.name not in robot.feet and (geom.contype or geom.conaffinity)]:
        geom.name = geom.name or f"{name}/{geom.id}"
        add_contact_sensor(spec, f"{name}/{geom.name}", mujoco.mjtObj.mjOBJ_GEOM, geom.name)


def add_contact_sensor(spec: mujoco.MjSpec, name: str, kind: mujoco.mjtObj, target: str) -> None:
    """Add a sensor of the sum of contact forces on a geom or body, in the world's frame."""
    spec.add_sensor(
        name=f"contact/{name}",
        type=mujoco.mjtSensor.mjSENS_CONTACT,
        reftype=kind,  # as the second of the two, so that the force is the one on it
        refname=target,
        intprm=[CONTACT_FORCE, NET_FORCE, 1],
    )


def add_camera(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Add the camera "track", which follows the robot from its right side, unless its file has one."""
    if "track" in [camera.name for camera in spec.cameras]:
        return
    distance = 3.5 * max(robot.base_height, 0.3) + 0.3
    spec.body(robot.base).add_camera(
        name="track",
        mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,
        pos=[0, -distance, 0.35 * distance],
        quat=[0.819, 0.574, 0, 0],  # looks along +y, 20 degrees down
    )


def add_floor(spec: mujoco.MjSpec) -> None:
    """Add a plane; its size is only what a renderer shows and rays hit."""
    spec.add_texture(
        name="floor",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.25, 0.3, 0.35],
        rgb2=[0.35, 0.4, 0.45],
        width=64,
        height=64,
    )
    material = spec.add_material(name="floor", texrepeat=[1, 1], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor"
    spec.worldbody.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[50, 50, 1],
        material="floor",
        contype=1,
        conaffinity=1,  # a robot's geoms may be of either kind
        group=TERRAIN_GROUP,
    )
    spec.worldbody.add_light(type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[0, 0, 5], dir=[0.2, 0.3, -1])


def with_home(spec: mujoco.MjSpec, robot: Robot) -> mujoco.MjModel:
    """Compile, and again with the keyframe "home": the default pose at the spawn height."""
    model = compile_spec(spec, robot)
    qpos = model.qpos0.copy()
    root = model.body(robot.base)
    if model.body_jntnum[root.id] != 1 or model.jnt_type[model.body_jntadr[root.id]] != mujoco.mjtJoint.mjJNT_FREE:
        raise ConfigError(f"robot {robot.name!r}: its base {robot.base!r} needs a free joint and no other")
    start = int(model.jnt_qposadr[model.body_jntadr[root.id]])
    qpos[start : start + 7] = (0, 0, robot.spawn_height or robot.base_height or qpos[start + 2], 1, 0, 0, 0)
    for joint in robot.joints:
        qpos[model.jnt_qposadr[model.joint(joint.name).id]] = joint.default
    ctrl = [joint.default if joint.control in ("position", "torque_speed") else 0.0 for joint in robot.joints]
    for key in list(spec.keys):
        spec.delete(key)
    spec.add_key(name="home", qpos=qpos, ctrl=ctrl)
    return compile_spec(spec, robot)


def compile_spec(spec: mujoco.MjSpec, robot: Robot) -> mujoco.MjModel:
    """Compile; what MuJoCo refuses, such as too little `<size memory>`, is one line."""
    try:
        return spec.compile()
    except ValueError as error:
        raise ConfigError(f"robot {robot.name!r}: MuJoCo cannot compile it: {' '.join(str(error).split())}") from None
