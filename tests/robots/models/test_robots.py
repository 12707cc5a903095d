"""The built-in robots: masses, orders, standing, symmetry, contact sensors, actuators and delays."""

import mujoco
import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.robots.models.bipeds import g1, pm01, sa01
from rl_lab.robots.models.layout import body_id, contact_columns, joint_id, layout_of, sensor_columns
from rl_lab.robots.models.quadruped import quadruped
from rl_lab.robots.models.robot import Joint, Robot
from rl_lab.robots.models.rolling import rotunbot
from rl_lab.robots.models.scene import Physics, compile_scene

BUILDERS = {"quadruped": quadruped, "g1": g1, "pm01": pm01, "sa01": sa01, "rotunbot": rotunbot}
CREEPLESS = Physics(timestep=0.002, cone="elliptic", impratio=10.0)


def scene(robot, **options):
    model = compile_scene(robot, **options)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    return model, data


@pytest.mark.parametrize(
    ("name", "mass"), [("quadruped", 15.206), ("g1", 33.34), ("pm01", 40.92), ("sa01", 33.11), ("rotunbot", 30.08)]
)
def test_total_mass(name, mass):
    model, _ = scene(BUILDERS[name]())
    assert model.body_subtreemass[1] == pytest.approx(mass, abs=0.01)


def test_joints_come_in_each_robot_s_own_order():
    parts = ("hip", "thigh", "calf")
    assert quadruped().joint_names == tuple(f"{leg}_{p}_joint" for leg in ("FL", "FR", "RL", "RR") for p in parts)
    pitch_first = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
    roll_first = ("hip_roll", "hip_yaw", "hip_pitch", "knee", "ankle_pitch", "ankle_roll")
    for robot, order in ((g1(), pitch_first), (pm01(), pitch_first), (sa01(), roll_first)):
        assert robot.joint_names == tuple(f"{side}_{joint}" for side in ("left", "right") for joint in order)
    assert pm01().joint_ids("left_hip_pitch", "right_hip_pitch") == (0, 6)
    assert sa01().joint_ids("*_hip_pitch") == (2, 8)
    assert rotunbot().joint_names == ("drive", "tilt")


@pytest.mark.parametrize("name", BUILDERS)
def test_columns_belong_to_the_joints_by_name(name):
    robot = BUILDERS[name]()
    model, data = scene(robot)
    layout = layout_of(model, robot)
    for i, joint in enumerate(robot.joints):
        assert data.joint(joint.name).qpos[0] == data.qpos[layout.qpos[i]] == joint.default
        assert model.dof_jntid[layout.dof[i]] == model.joint(joint.name).id
        assert model.actuator_trnid[layout.actuator[i], 0] == model.joint(joint.name).id
        assert model.actuator_forcerange[layout.actuator[i], 1] == joint.effort
        if joint.range:
            assert tuple(model.jnt_range[layout.joint[i]]) == pytest.approx(joint.range)
            assert joint.range[0] <= joint.default <= joint.range[1]
    assert [model.site(s).name for s in layout.feet] == list(robot.feet)


def lowest_point(model, data):
    """Return the lowest z of the spheres that can touch the ground."""
    spheres = [g for g in range(model.ngeom) if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_SPHERE]
    return min(data.geom_xpos[g, 2] - model.geom_size[g, 0] for g in spheres if model.geom_conaffinity[g])


@pytest.mark.parametrize("name", BUILDERS)
def test_the_home_pose_is_just_above_the_ground(name):
    assert -1e-6 <= lowest_point(*scene(BUILDERS[name]())) < 0.02


@pytest.mark.parametrize("name", BUILDERS)
def test_it_stands_for_five_seconds(name):
    robot = BUILDERS[name]()
    if name in ("g1", "pm01", "sa01"):  # with their own gains they need a policy to stand
        robot = robot.with_joints({"*": {"kp": 400.0, "kd": 20.0}})
    model, data = scene(robot, physics=CREEPLESS)
    for _ in range(2500):
        mujoco.mj_step(model, data)
    up = data.body(robot.base).xmat.reshape(3, 3)[2, 2]
    assert data.qpos[2] == pytest.approx(robot.base_height, abs=0.02)
    assert up > 0.99
    assert np.abs(data.qvel).max() < 0.02
    weight = model.body_subtreemass[1] * 9.81
    layout = layout_of(model, robot)
    touched = robot.feet or ("shell",)
    held = sum(data.sensordata[columns][2] for foot in touched for columns in layout.contacts[foot])
    assert held == pytest.approx(weight, rel=0.01)  # contact forces point up, and carry all of it
    others = [columns for other in robot.contact_names if other not in touched for columns in layout.contacts[other]]
    assert all(not data.sensordata[columns].any() for columns in others)


def mirrored(robot, layout, qpos, qvel):
    """Return the mirror image of a state across the plane y = 0."""
    source, sign = robot.mirrored_joints()
    joints, dofs = np.array(layout.qpos), np.array(layout.dof)
    new_qpos, new_qvel = qpos.copy(), qvel.copy()
    new_qpos[:7] = qpos[:7] * [1, -1, 1, 1, -1, 1, -1]
    new_qvel[:6] = qvel[:6] * [1, -1, 1, -1, 1, -1]  # velocities are mirrored, turning rates about x and z change sign
    new_qpos[joints] = qpos[joints][list(source)] * sign
    new_qvel[dofs] = qvel[dofs][list(source)] * sign
    return new_qpos, new_qvel


@pytest.mark.parametrize("name", BUILDERS)
def test_a_mirrored_state_gives_a_mirrored_simulation(name):
    robot = BUILDERS[name]()
    model, left = scene(robot)
    layout = layout_of(model, robot)
    source, sign = robot.mirrored_joints()
    rng = np.random.default_rng(1)
    left.qpos[np.array(layout.qpos)] += rng.uniform(-0.15, 0.15, len(robot.joints))
    left.qpos[3:7] = [0.99, 0.08, 0.05, 0.06] / np.linalg.norm([0.99, 0.08, 0.05, 0.06])
    left.qpos[2] += 0.01
    left.qvel[:] = rng.uniform(-0.5, 0.5, model.nv)
    right = mujoco.MjData(model)
    right.qpos[:], right.qvel[:] = mirrored(robot, layout, left.qpos, left.qvel)
    home = model.key_ctrl[0]
    for _ in range(40):
        action = rng.uniform(-0.3, 0.3, len(robot.joints))
        left.ctrl[:], right.ctrl[:] = home + action, home + action[list(source)] * sign
        mujoco.mj_step(model, left)
        mujoco.mj_step(model, right)
    wanted = np.concatenate(mirrored(robot, layout, left.qpos, left.qvel))
    assert np.abs(np.concatenate([right.qpos, right.qvel]) - wanted).max() < 1e-6
    assert left.ncon > 0 or name == "sa01"


def test_mirroring_twice_is_nothing():
    for builder in BUILDERS.values():
        source, sign = builder().mirrored_joints()
        values = np.arange(1.0, len(source) + 1)
        once = values[list(source)] * sign
        assert np.array_equal(once[list(source)] * sign, values)


def test_the_rolling_robot_rolls_forward_and_leans_into_the_curve():
    robot = rotunbot()
    model, data = scene(robot)
    data.ctrl[:] = (3.0, 0.0)
    for _ in range(800):
        mujoco.mj_step(model, data)
    assert data.qpos[0] > 3.0
    assert abs(data.qpos[1]) < 1e-6
    assert data.qvel[0] == pytest.approx(3.0 * 0.4, rel=0.05)  # no slip, and the frame inside stays upright
    data.ctrl[:] = (3.0, 0.3)
    for _ in range(400):
        mujoco.mj_step(model, data)
    assert data.qvel[1] > 0.2  # a positive tilt turns left


# actuators


def one_joint(**settings):
    mjcf = """<mujoco><worldbody><body name="base" pos="0 0 2"><freejoint/><geom size="0.1" mass="5"/>
    <body name="arm"><joint name="arm" axis="0 1 0"/><geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2" mass="1"/>
    </body></body></worldbody></mujoco>"""
    return Robot("arm", mjcf, (Joint("arm", effort=20.0, **settings),), base="base", base_height=2.0)


def force(model, data, angle, speed, target):
    data.qpos[7], data.qvel[6], data.ctrl[0] = angle, speed, target
    mujoco.mj_forward(model, data)
    return data.actuator_force[0]


LAWS = {
    "position": lambda q, v, u: np.clip(30 * (u - q) - 0.7 * v, -20, 20),
    "velocity": lambda q, v, u: np.clip(0.7 * (u - v), -20, 20),
    "torque": lambda q, v, u: np.clip(u, -20, 20),
    "torque_speed": lambda q, v, u: np.clip(
        np.clip(30 * (u - q) - 0.7 * v, -20 * (1 + v / 25), 20 * (1 - v / 25)), -20, 20
    ),
}


@pytest.mark.parametrize("control", LAWS)
def test_actuators_follow_their_law(control):
    model, data = scene(one_joint(kp=30.0, kd=0.7, max_speed=25.0, control=control))
    rng = np.random.default_rng(0)
    for _ in range(50):
        q, v, u = rng.uniform(-1, 1), rng.uniform(-30, 30), rng.uniform(-3, 3) * (10 if control == "torque" else 1)
        assert force(model, data, q, v, u) == pytest.approx(LAWS[control](q, v, u), abs=1e-9)
    assert abs(force(model, data, 0.0, 24.0, 9.0)) < 1 or control != "torque_speed"  # nearly no torque at full speed


@pytest.mark.parametrize("substeps", [0, 1, 3])
def test_an_actuator_s_delay_shifts_its_force_by_whole_substeps(substeps):
    robot = one_joint(control="torque")
    model, data = scene(robot, physics=Physics(actuator_delay=0.005 * substeps, max_actuator_delay=0.02))
    inputs, forces = np.random.default_rng(0).uniform(-5, 5, 12), []
    for value in inputs:
        data.ctrl[0] = value
        mujoco.mj_step(model, data)
        forces.append(data.actuator_force[0])
    late = np.concatenate([np.zeros(substeps), inputs])[:12]
    assert np.allclose(forces, late)


def test_gains_of_worlds_reach_every_kind_of_actuator():
    from rl_lab.robots.models.gains import default_gains, gain_parameters, gain_places

    for control in ("position", "velocity", "torque_speed"):
        model, data = scene(one_joint(kp=30.0, kd=0.7, max_speed=25.0, control=control))
        kp, kd = default_gains(model)
        assert (kp.item(), kd.item()) == (pytest.approx(0.0 if control == "velocity" else 30.0), pytest.approx(0.7))
        gain, bias = gain_parameters(kp[None] * 2, kd[None] * 3, *gain_places(model))
        model.actuator_gainprm[:], model.actuator_biasprm[:] = gain[0], bias[0]
        law = 2.1 * (0.3 - 0.5) if control == "velocity" else 60 * (0.3 - 0.2) - 2.1 * 0.5
        assert force(model, data, 0.2, 0.5, 0.3) == pytest.approx(law, rel=1e-5)


def test_gains_of_mixed_actuators_are_placed_one_by_one():
    from rl_lab.robots.models.gains import gain_parameters, gain_places

    kinds = {"FL_*": {"control": "velocity"}, "FR_*": {"control": "torque"}, "RL_*": {"control": "torque_speed"}}
    model = compile_scene(quadruped().with_joints(kinds))
    kp, kd = torch.rand(2, 3, model.nu).unbind()
    gain, bias = gain_parameters(kp, kd, *gain_places(model))
    for world in range(3):
        for i in range(model.nu):
            own = [torch.tensor(model.actuator_gainprm[i]).float(), torch.tensor(model.actuator_biasprm[i]).float()]
            kind = {"FL": "velocity", "FR": "torque", "RL": "motor"}.get(model.actuator(i).name[:2], "position")
            p, d = kp[world, i], kd[world, i]
            if kind == "motor":
                own[0][4], own[0][6] = p, d
            elif kind == "position":
                own[0][0], own[1][1], own[1][2] = p, -p, -d
            elif kind == "velocity":
                own[0][0], own[1][2] = d, -d
            assert torch.equal(gain[world, i], own[0])
            assert torch.equal(bias[world, i], own[1])


# bad input


def test_wrong_names_and_missing_gains_are_one_line():
    with pytest.raises(ConfigError, match=r"joint 'knee' needs kp > 0 for position control"):
        Joint("knee", effort=10.0)
    with pytest.raises(ConfigError, match="joint 'knee' needs max_speed > 0 for torque_speed control"):
        Joint("knee", kp=1.0, effort=10.0, control="torque_speed")
    with pytest.raises(ConfigError, match=r"unknown control of joint 'knee' 'pid' .*position, torque, torque_speed"):
        Joint("knee", kp=1.0, effort=1.0, control="pid")
    with pytest.raises(ConfigError, match=r"unknown joint of robot 'quadruped' 'FL_hip'; did you mean 'FL_hip_joint'"):
        quadruped().joint_ids("FL_hip")
    with pytest.raises(ConfigError, match=r"joints '\*': unknown key 'stiffness'.*kp"):
        quadruped().with_joints({"*": {"stiffness": 3}})
    with pytest.raises(ConfigError, match=r"joints '\*': must be a dict"):
        quadruped().with_joints({"*": None})
    for setting, message in (
        ({"kp": "abc"}, "joint 'knee': kp: must be a number, not 'abc'"),
        ({"damping": "high"}, "joint 'knee': damping: must be a number"),
        ({"range": 0.5}, "joint 'knee': range: must be a list of numbers"),
        ({"range": [0.0, 0.5, 1.0]}, "joint 'knee': range must be two numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            Joint(**{"name": "knee", "kp": 1.0, "effort": 1.0, **setting})
    robot = one_joint(kp=1.0)
    for wrong, message in (
        ({"joints": (Joint("elbow", kp=1.0, effort=1.0),)}, r"unknown joint of robot 'arm' 'elbow' \(choices: .*arm\)"),
        ({"joints": ()}, "robot 'arm' has no actuated joints"),
        ({"base": "trunk"}, r"unknown body of robot 'arm' 'trunk' \(choices: arm, base\)"),
        ({"terminating": ("head",)}, "unknown body of robot 'arm' 'head'"),
        ({"feet": ("toe",)}, "unknown foot site of robot 'arm' 'toe'"),
        ({"base": "arm"}, "its base 'arm' needs a free joint"),
        ({"mjcf": "<mujoco><oops/></mujoco>"}, "robot 'arm': not readable as MJCF"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            compile_scene(Robot(**{**vars(robot), **wrong}))
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="unknown friction cone 'round'"):
        compile_scene(robot, physics=Physics(cone="round"))
    with pytest.raises(ConfigError, match="no left-right mirror"):
        robot.mirrored_joints()


def test_names_in_a_model_are_looked_up_or_listed():
    model, _ = scene(quadruped())
    assert model.body(body_id(model, "FL_calf")).name == "FL_calf"
    for lookup, kind in ((body_id, "body"), (joint_id, "joint"), (sensor_columns, "sensor")):
        with pytest.raises(ConfigError, match=f"unknown {kind} 'nose'.*choices: "):
            lookup(model, "nose")
    with pytest.raises(ConfigError, match="unknown contact sensor of 'FL_hip'.*FL_foot"):
        contact_columns(model, "FL_hip")


def test_the_base_sensors_say_what_they_measure():
    robot = quadruped()
    model, data = scene(robot)
    layout = layout_of(model, robot)
    data.qvel[:6] = (0.3, -0.2, 0.1, 0.5, 0.6, 0.7)
    mujoco.mj_forward(model, data)
    assert np.allclose(data.sensordata[layout.gyro], (0.5, 0.6, 0.7))
    lever = model.site_pos[layout.imu]
    assert np.allclose(
        data.sensordata[layout.velocimeter], np.array([0.3, -0.2, 0.1]) + np.cross((0.5, 0.6, 0.7), lever)
    )
    assert np.allclose(data.sensordata[layout.orientation], (1, 0, 0, 0))
    assert torch.as_tensor(data.sensordata[layout.accelerometer]).shape == (3,)
