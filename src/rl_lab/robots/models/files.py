"""A robot of one's own: an MJCF or URDF file, and a small YAML that names its joints, gains, feet and base."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import mujoco
import yaml
from omegaconf import OmegaConf

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.managers.terms import check_keys, number
from rl_lab.robots.models.robot import Joint, Robot

KEYS = (
    *("file", "name", "base", "joints", "order", "feet", "penalised", "terminating"),
    *("base_height", "spawn_height", "mirror", "soft_limit"),
)
JOINT_KEYS = tuple(name for name in Joint.__dataclass_fields__ if name != "name")
PACKAGE = "package://"  # how a URDF names a file of a ROS package
HINGE, SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)


def robot_from_file(path: str | Path) -> Robot:
    """Return the robot that a YAML file describes; see docs/robots.md.

    Args:
        path: The YAML. Its `file` names the MJCF or URDF beside it.
    """
    path = Path(path)
    settings = read_settings(path)
    source = path.parent / settings["file"]
    spec = read_source(source)
    try:
        model = spec.compile()
    except ValueError as error:
        raise ConfigError(f"robot file {source}: {' '.join(str(error).split())}") from None
    joints = joints_of(model, settings, source)
    base = settings.get("base", model.body(1).name if model.nbody > 1 else "")
    prepare(spec, model, base, tuple(settings.get("feet", ())), source)
    assets = take_assets(spec, source)
    spec.assets = assets
    spec.compile()
    return Robot(
        name=settings.get("name", path.stem),
        mjcf=spec.to_xml(),
        joints=joints,
        base=base,
        feet=tuple(settings.get("feet", ())),
        penalised=tuple(settings.get("penalised", ())),
        terminating=tuple(settings.get("terminating", ())),
        base_height=number(f"robot file {path}: base_height", settings.get("base_height", 0.0)),
        spawn_height=number(f"robot file {path}: spawn_height", settings.get("spawn_height", 0.0)),
        mirror={name: (str(other), float(sign)) for name, (other, sign) in settings.get("mirror", {}).items()},
        soft_limit=number(f"robot file {path}: soft_limit", settings.get("soft_limit", 0.9)),
        assets=assets,
    )


def read_settings(path: Path) -> dict[str, Any]:
    """Return the YAML's content, its keys checked."""
    if not path.is_file():
        raise ConfigError(f"robot file {path} does not exist")
    try:
        settings = OmegaConf.to_container(OmegaConf.create(path.read_text()))  # where 1e-3 is a number
    except yaml.YAMLError as error:
        raise ConfigError(f"robot file {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or "file" not in settings:
        raise ConfigError(f"robot file {path} needs the key `file`: the MJCF or URDF beside it")
    for key in settings:
        if key not in KEYS:
            raise ConfigError(unknown_name(f"key of robot file {path}", key, KEYS))
    return {str(key): value for key, value in settings.items()}


def read_source(source: Path) -> mujoco.MjSpec:
    """Return the MJCF or URDF as a spec."""
    if not source.is_file():
        raise ConfigError(f"robot file {source} does not exist")
    try:
        spec = mujoco.MjSpec.from_file(str(source))
    except ValueError as error:
        raise ConfigError(f"robot file {source} is neither MJCF nor URDF: {' '.join(str(error).split())}") from None
    spec.compiler.fusestatic = False  # a URDF's root link stays a body
    spec.compiler.discardvisual = False
    for mesh in spec.meshes:
        if mesh.file.startswith(PACKAGE):
            mesh.file = str(package_file(mesh.file, source))
    return spec


def package_file(address: str, source: Path) -> Path:
    """Return where `package://NAME/FILE` lies: in a folder NAME, or in one that holds FILE, above the robot's file."""
    inside = Path(address.removeprefix(PACKAGE))
    for folder in source.resolve().parents:
        for file in (folder / inside, folder / Path(*inside.parts[1:])):
            if file.is_file():
                return file
    raise ConfigError(f"robot file {source}: no folder above it has {address}")


def joints_of(model: mujoco.MjModel, settings: Mapping[str, Any], source: Path) -> tuple[Joint, ...]:
    """Return the actuated joints in the order of the actions: those the YAML names, else those the file drives."""
    movable = [model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] in (HINGE, SLIDE)]
    if not movable:
        raise ConfigError(f"robot file {source} has no hinge or slide joints")
    given = settings.get("joints", {})
    if not given and not model.nu:
        raise ConfigError(f"robot file {source} has no actuators: name its `joints` with kp, kd and effort in the YAML")
    values = {name: file_values(model, name) for name in movable} if given else driven(model, source)
    chosen = set() if given else set(values)
    for pattern, numbers in given.items():
        matches = [name for name in movable if fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(unknown_name(f"joint of robot file {source}", pattern, movable))
        check_keys(f"joints {pattern!r}", numbers, JOINT_KEYS)
        for name in matches:
            values[name].update(numbers)
            chosen.add(name)
    order = settings.get("order", [name for name in movable if name in chosen])
    if sorted(order) != sorted(chosen):
        raise ConfigError(
            f"robot file {source}: `order` must hold each of its joints once: {', '.join(sorted(chosen))}"
        )
    return tuple(Joint(name=name, **with_pair(values[name])) for name in order)


def with_pair(values: dict[str, Any]) -> dict[str, Any]:
    """Return a joint's values, its range as a pair."""
    return values | {"range": tuple(values["range"])} if values.get("range") else values


def file_values(model: mujoco.MjModel, name: str) -> dict[str, Any]:
    """Return what a file itself says of a joint."""
    joint = model.joint(name)
    dof = int(model.jnt_dofadr[joint.id])
    return {
        "range": tuple(float(limit) for limit in joint.range) if model.jnt_limited[joint.id] else None,
        "effort": float(model.jnt_actfrcrange[joint.id, 1]) if model.jnt_actfrclimited[joint.id] else 0.0,
        "armature": float(model.dof_armature[dof]),
        "frictionloss": float(model.dof_frictionloss[dof]),
        "damping": float(model.dof_damping[dof].flat[0]),
        "default": float(model.key_qpos[0, joint.qposadr[0]] if model.nkey else model.qpos0[joint.qposadr[0]]),
    }


def driven(model: mujoco.MjModel, source: Path) -> dict[str, dict[str, Any]]:
    """Return the joints that a file's own position, velocity and torque actuators drive, with their gains."""
    values = {}
    for i in range(model.nu):
        if model.actuator_trntype[i] != mujoco.mjtTrn.mjTRN_JOINT:
            raise ConfigError(
                f"robot file {source}: actuator {model.actuator(i).name!r} drives no joint: name `joints`"
            )
        name = model.joint(int(model.actuator_trnid[i, 0])).name
        if name in values:
            raise ConfigError(f"robot file {source}: joint {name!r} has several actuators: name `joints`")
        gain, bias, gear = model.actuator_gainprm[i], model.actuator_biasprm[i], abs(float(model.actuator_gear[i, 0]))
        stiffness, damping = (-float(number) * gear**2 for number in bias[1:3])  # of the joint, behind its gear
        control = "position" if stiffness > 0 else "velocity" if damping > 0 else "torque"
        own = file_values(model, name) | {"control": control, "kp": stiffness, "kd": damping}
        if model.actuator_forcelimited[i]:
            own["effort"] = float(model.actuator_forcerange[i, 1]) * gear
        elif control == "torque" and model.actuator_ctrllimited[i]:
            own["effort"] = float(model.actuator_ctrlrange[i, 1] * gain[0]) * gear
        values[name] = own
    return values


def prepare(spec: mujoco.MjSpec, model: mujoco.MjModel, base: str, feet: tuple[str, ...], source: Path) -> None:
    """Take away what the scene adds itself; give the base a free joint, and every foot a site and its own friction."""
    bodies = [body.name for body in spec.bodies if body.name != "world"]
    if base not in bodies:
        raise ConfigError(unknown_name(f"base body of robot file {source}", base, bodies))
    for element in (*spec.actuators, *spec.keys, *spec.worldbody.geoms, *spec.worldbody.lights):
        spec.delete(element)
    if not any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in spec.body(base).joints):
        spec.body(base).add_freejoint(name="root")
    sites, geoms = [site.name for site in spec.sites], {geom.name: geom for geom in spec.geoms if geom.name}
    for foot in feet:
        if foot in sites:
            continue
        if foot in geoms:
            place = model.geom_pos[model.geom(foot).id]
            geoms[foot].parent.add_site(name=foot, pos=place)
        elif foot in bodies:
            spec.body(foot).add_site(name=foot)
        else:
            raise ConfigError(
                unknown_name(f"foot (site, geom or body) of robot file {source}", foot, [*sites, *geoms, *bodies])
            )
    carriers = {spec.site(foot).parent.name for foot in feet}
    for geom in spec.geoms:
        if not feet or geom.parent.name in carriers:
            geom.priority = max(geom.priority, 1)  # over the ground's: else events would draw frictions in vain


def take_assets(spec: mujoco.MjSpec, source: Path) -> dict[str, bytes]:
    """Return the files that the robot refers to, under names without folders; no two files share one."""
    assets: dict[str, bytes] = {}
    for kind, folder in ((spec.meshes, spec.meshdir), (spec.textures, spec.texturedir)):
        for asset in kind:
            if asset.file:
                name, content = Path(asset.file).name, (source.parent / folder / asset.file).read_bytes()
                if assets.setdefault(name, content) != content:
                    name = f"{len(assets)}_{name}"
                    assets[name] = content
                asset.file = name
    spec.meshdir = spec.texturedir = ""
    return assets
