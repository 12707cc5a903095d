"""Robots of one's own: MJCF, URDF and their YAML."""

import mujoco
import numpy as np
import pytest

from rl_lab.core import ConfigError
from rl_lab.robots.models.files import robot_from_file
from rl_lab.robots.models.layout import layout_of
from rl_lab.robots.models.scene import compile_scene

MJCF = """<mujoco><compiler angle="degree" meshdir="parts"/>
<asset><mesh name="hull" file="hull.obj"/></asset><worldbody>
<geom name="ground" type="plane" size="1 1 1"/><light pos="0 0 1"/>
<body name="trunk" pos="0 0 0.5"><geom type="mesh" mesh="hull" mass="4"/><site name="imu"/>
 <body name="thigh"><joint name="hip" axis="0 1 0" range="-90 90" armature="0.02"/><geom size="0.02" mass="0.5"/>
  <body name="shank" pos="0 0 -0.2"><joint name="knee" axis="0 1 0" range="0 120"/>
   <geom name="bone" type="capsule" size="0.01" fromto="0 0 0 0 0 -0.1"/><geom name="toe" size="0.03" pos="0 0 -0.2"/>
  </body></body></body></worldbody>{actuators}</mujoco>"""
ACTUATORS = """<actuator><position joint="knee" kp="40" kv="1" forcerange="-30 30"/>
<motor joint="hip" ctrlrange="-2 2" gear="10"/></actuator>"""
HULL = "v 0 0 0\nv .2 0 0\nv 0 .2 0\nv 0 0 .2\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
URDF = """<robot name="r"><link name="base_link"><inertial><mass value="5"/>
<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>
<collision><geometry><box size="0.3 0.2 0.1"/></geometry></collision></link>
<link name="leg"><inertial><mass value="1"/><origin xyz="0 0 -0.1"/>
<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
<collision><origin xyz="0 0 -0.2"/><geometry><sphere radius="0.03"/></geometry></collision></link>
<joint name="hip" type="revolute"><parent link="base_link"/><child link="leg"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="20" velocity="10"/></joint></robot>"""
GAINS = "joints: {'*': {kp: 50, kd: 2, effort: 60}, knee: {default: 0.7, kp: 80}}\n"


def write(folder, text, yaml, file="robot.xml"):
    (folder / "parts").mkdir(exist_ok=True)
    (folder / "parts" / "hull.obj").write_text(HULL)
    (folder / file).write_text(text)
    path = folder / "mine.yaml"
    path.write_text(f"file: {file}\n{yaml}")
    return path


def test_an_mjcf_with_gains_in_the_yaml(tmp_path):
    path = write(
        tmp_path,
        MJCF.format(actuators=""),
        GAINS + "order: [knee, hip]\nfeet: [toe]\npenalised: [shank]\nterminating: [trunk]\nbase_height: 0.45\n",
    )
    robot = robot_from_file(path)
    assert robot.name == "mine"
    assert robot.base == "trunk"
    assert robot.joint_names == ("knee", "hip")
    knee, hip = robot.joints
    assert (knee.kp, knee.kd, knee.default, knee.effort, hip.kp, hip.armature) == (80, 2, 0.7, 60, 50, 0.02)
    assert hip.range == pytest.approx((-np.pi / 2, np.pi / 2))  # the file's degrees
    model = compile_scene(robot)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    assert data.qpos[2] == 0.45
    assert data.joint("knee").qpos[0] == 0.7
    layout = layout_of(model, robot)
    assert np.allclose(data.site_xpos[layout.feet[0]], data.geom("toe").xpos)
    assert [model.sensor(i).name for i in range(model.nsensor)][4:] == [
        "contact/toe",
        "contact/shank/bone",
        "contact/trunk",
    ]
    assert [model.geom(g).name for g in range(model.ngeom) if model.geom_bodyid[g] == 0] == ["floor"]
    assert model.body_subtreemass[1] > 4.5


def test_an_mjcf_that_brings_its_actuators(tmp_path):
    robot = robot_from_file(write(tmp_path, MJCF.format(actuators=ACTUATORS), "feet: [shank]\n"))
    by_name = {joint.name: joint for joint in robot.joints}
    assert robot.joint_names == ("hip", "knee")
    assert (by_name["knee"].control, by_name["knee"].kp, by_name["knee"].kd, by_name["knee"].effort) == (
        "position",
        40,
        1,
        30,
    )
    assert (by_name["hip"].control, by_name["hip"].effort) == ("torque", 20)
    assert compile_scene(robot).nu == 2


def test_a_urdf(tmp_path):
    yaml = "joints: {hip: {kp: 30, kd: 1}}\nbase: base_link\nfeet: [leg]\nmirror: {hip: [hip, 1]}\n"
    robot = robot_from_file(write(tmp_path, URDF, yaml, "r.urdf"))
    assert robot.joints[0].effort == 20
    assert robot.mirrored_joints() == ((0,), (1.0,))
    model = compile_scene(robot)
    assert model.body_subtreemass[1] == pytest.approx(6)
    assert model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    data = mujoco.MjData(model)
    for _ in range(100):
        mujoco.mj_step(model, data)
    assert np.isfinite(data.qpos).all()


PLAIN = MJCF.format(actuators="")
STIFF = "<mujoco><worldbody><body name='b'><freejoint/><geom size='1'/></body></worldbody></mujoco>"


@pytest.mark.parametrize(
    ("text", "yaml", "message"),
    [
        (PLAIN, "", "has no actuators: name its `joints` with kp, kd and effort in the YAML"),
        (STIFF, "", "has no hinge or slide joints"),
        (PLAIN, "joints: {knees: {kp: 1}}", "unknown joint of robot file .* 'knees'; did you mean 'knee'.*hip, knee"),
        (PLAIN, "joints: {'*': {kd: 1, effort: 3}}", "joint 'hip' needs kp > 0 for position control"),
        (PLAIN, "joints: {'*': {kp: 1}}", "joint 'hip' needs effort > 0"),
        (PLAIN, "joints: {'*': {kpp: 1}}", r"unknown setting of joints '\*' 'kpp'; did you mean 'kp'"),
        (PLAIN, GAINS + "order: [hip]", "`order` must hold each of its joints once: hip, knee"),
        (PLAIN, GAINS + "base: body", "unknown base body of robot file .* 'body'.*shank, thigh, trunk"),
        (PLAIN, GAINS + "feet: [heel]", r"unknown foot \(site, geom or body\) of robot file .* 'heel'"),
        (PLAIN, GAINS + "foot: [toe]", "unknown key of robot file .* 'foot' .choices: base, base_height, feet, file"),
        (PLAIN, "joints: [", "is not YAML"),
        ("<mujoco><oops/></mujoco>", GAINS, "is neither MJCF nor URDF"),
    ],
)
def test_bad_files_are_one_line(tmp_path, text, yaml, message):
    with pytest.raises(ConfigError, match=message) as error:
        robot_from_file(write(tmp_path, text, yaml))
    assert "\n" not in str(error.value)


def test_missing_files(tmp_path):
    with pytest.raises(ConfigError, match="robot file .*none.yaml does not exist"):
        robot_from_file(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text("file: b.xml")
    with pytest.raises(ConfigError, match=r"robot file .*b.xml does not exist"):
        robot_from_file(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("base: trunk")
    with pytest.raises(ConfigError, match="needs the key `file`"):
        robot_from_file(tmp_path / "a.yaml")
