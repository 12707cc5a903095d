"""Robots of one's own: MJCF, URDF and their YAML."""

import mujoco
import numpy as np
import pytest

from rl_lab.core import ConfigError
from rl_lab.robots.models.files import robot_from_file
from rl_lab.robots.models.layout import layout_of
from rl_lab.robots.models.scene import compile_scene
from rl_lab.robots.terrain.terrain import Terrain

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
TWICE = "<actuator><position joint='knee' kp='4'/><velocity joint='knee' kv='1'/></actuator>"
ROS = URDF.replace('<sphere radius="0.03"/>', '<mesh filename="package://mine/parts/hull.stl"/>')
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


def test_a_urdf_finds_the_files_of_its_package(tmp_path):
    folder = tmp_path / "mine" / "urdf"
    folder.mkdir(parents=True)
    text = ROS.replace("hull.stl", "hull.obj")
    path = write(folder, text.replace("mine/parts", "mine/urdf/parts"), "joints: {hip: {kp: 30}}", "r.urdf")
    assert compile_scene(robot_from_file(path)).nmesh == 1
    path = write(folder, text, "joints: {hip: {kp: 30}}", "r.urdf")  # the folder has another name than the package
    assert compile_scene(robot_from_file(path)).nmesh == 1


def test_files_of_the_same_name_stay_apart(tmp_path):
    shapes = "".join(f'<mesh name="{part}" file="{part}/hull.obj"/>' for part in ("seen", "felt"))
    geoms = "".join(f'<geom type="mesh" mesh="{part}" mass="1"/>' for part in ("seen", "felt"))
    body = f'<body name="b"><freejoint/>{geoms}<body><joint name="hip"/><geom size="0.1" pos="1 0 0"/></body></body>'
    for part, size in (("seen", 1.0), ("felt", 3.0)):
        (tmp_path / part).mkdir()
        lines = (f"v {size * (i == 1)} {size * (i == 2)} {size * (i == 3)}\n" for i in range(4))
        (tmp_path / part / "hull.obj").write_text("".join(lines) + "f 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
    text = f"<mujoco><asset>{shapes}</asset><worldbody>{body}</worldbody></mujoco>"
    model = compile_scene(robot_from_file(write(tmp_path, text, "joints: {hip: {kp: 1, effort: 1}}")))
    for part, size in (("seen", 1.0), ("felt", 3.0)):
        mesh = model.mesh(part)
        vertices = model.mesh_vert[mesh.vertadr[0] : mesh.vertadr[0] + mesh.vertnum[0]]
        assert np.linalg.norm(vertices[0] - vertices[1]) == pytest.approx(size)  # corner to corner along an axis


def test_gears_are_part_of_what_an_actuator_does(tmp_path):
    own = """<actuator><position joint="knee" kp="4" kv="0.1" gear="3" forcerange="-5 5"/>
<motor joint="hip" ctrlrange="-2 2" forcerange="-1.5 1.5" gear="10"/></actuator>"""
    robot = robot_from_file(write(tmp_path, MJCF.format(actuators=own), ""))
    knee, hip = robot.joints[1], robot.joints[0]
    assert (knee.kp, knee.kd, knee.effort) == pytest.approx((36.0, 0.9, 15.0))
    assert (hip.control, hip.effort) == ("torque", 15.0)
    source = mujoco.MjSpec.from_string(MJCF.format(actuators=own), assets={"parts/hull.obj": HULL.encode()}).compile()
    torques = []
    for model, target in ((source, 3 * 0.2), (compile_scene(robot), 0.2)):  # a target before the gear, and behind it
        data = mujoco.MjData(model)
        data.joint("knee").qpos[:], data.joint("knee").qvel[:] = 0.1, 0.5
        data.ctrl[0 if model is source else 1] = target
        mujoco.mj_forward(model, data)
        torques.append(float(data.qfrc_actuator[model.joint("knee").dofadr[0]]))
    assert torques[0] == pytest.approx(36 * 0.1 - 0.9 * 0.5)
    assert torques[1] == pytest.approx(torques[0])


@pytest.mark.parametrize("kind", ['contype="1" conaffinity="0"', 'contype="0" conaffinity="1"', ""])
@pytest.mark.parametrize("has_feet", [True, False])
def test_a_robot_stands_on_the_ground_with_its_own_friction(tmp_path, kind, has_feet):
    text = f"""<mujoco><default><geom {kind}/></default><worldbody><body name="trunk" pos="0 0 0.3"><freejoint/>
<geom name="sole" type="box" size="0.2 0.2 0.1" mass="4" friction="0.4"/>
<body name="arm" pos="0 0 0.2"><joint name="hip" axis="0 1 0"/><geom size="0.02" mass="0.1"/></body>
</body></worldbody></mujoco>"""
    gains = "joints: {hip: {kp: 5, kd: 1e-1, effort: 5, armature: 1e-2}}\n"  # YAML 1.1 takes these for texts
    robot = robot_from_file(write(tmp_path, text, gains + ("feet: [trunk]" if has_feet else "")))
    assert (robot.joints[0].kd, robot.joints[0].armature) == (0.1, 0.01)
    for terrain in (None, Terrain(tiles={"flat": 1.0}, num_levels=1, num_columns=1, border=0.0)):
        model = compile_scene(robot, terrain)
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        for _ in range(200):
            mujoco.mj_step(model, data)
        assert data.qpos[2] == pytest.approx(0.1, abs=0.01)
        assert {float(contact.friction[0]) for contact in data.contact} == {0.4}


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
        (PLAIN, "joints: {'*': {kpp: 1}}", r"joints '\*': unknown key 'kpp'; did you mean 'kp'"),
        (PLAIN, GAINS + "order: [hip]", "`order` must hold each of its joints once: hip, knee"),
        (PLAIN, GAINS + "base: body", "unknown base body of robot file .* 'body'.*shank, thigh, trunk"),
        (PLAIN, GAINS + "feet: [heel]", r"unknown foot \(site, geom or body\) of robot file .* 'heel'"),
        (PLAIN, GAINS + "foot: [toe]", "unknown key of robot file .* 'foot' .choices: base, base_height, feet, file"),
        (PLAIN, GAINS + "base_height: tall", "base_height: must be a number, not 'tall'"),
        (MJCF.format(actuators=TWICE), "", "joint 'knee' has several actuators: name `joints`"),
        (ROS, GAINS, "no folder above it has package://mine/parts/hull.stl"),
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
