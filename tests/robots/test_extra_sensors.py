"""Sensors that a scene has only where a reward reads them, against sums over bodies and contacts in float64."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from rl_lab.robots.models.layout import has_sensor, sensor_columns
from rl_lab.robots.models.quadruped import quadruped
from rl_lab.robots.models.scene import EXTRA_SENSORS, compile_scene
from tests.robots.tasks import task


def momentum(model, data):
    """Return the angular momentum of all bodies about their common centre of mass."""
    bodies = range(1, model.nbody)
    center = sum(model.body_mass[i] * data.xipos[i] for i in bodies) / model.body_mass.sum()
    total = np.zeros(3)
    for i in bodies:
        motion = np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, i, motion, 0)  # of the frame of its inertia
        turn = data.ximat[i].reshape(3, 3)
        total += turn @ np.diag(model.body_inertia[i]) @ turn.T @ motion[:3]
        total += model.body_mass[i] * np.cross(data.xipos[i] - center, motion[3:])
    return total


def test_the_angular_momentum_is_that_of_all_bodies():
    env = task(num_envs=2, rewards={"terms": {"angular_momentum": {"weight": -0.02}}})
    env.reset(0)
    for seed in range(3):
        env.step(torch.randn(2, 12, generator=torch.Generator().manual_seed(seed)))
    for world in range(2):
        model = env.world.sim._batch.get_model(world)  # masses are drawn for each
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = (env.world.sim.read(name)[world].double().numpy() for name in ("qpos", "qvel"))
        mujoco.mj_forward(model, data)
        wanted = momentum(model, data)
        assert np.linalg.norm(wanted) > 1e-3
        np.testing.assert_allclose(env.last_state.angular_momentum[world].numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_the_force_on_itself_is_that_of_the_strongest_contact():
    robot = quadruped()
    touches = replace(robot, mjcf=robot.mjcf.replace('contype="0" conaffinity="1"', 'contype="1" conaffinity="1"'))
    model = compile_scene(touches, sensors=["self_contact"])
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    data.qpos[2] = 2.0  # in the air
    for leg, side in (("FL", -1.0), ("FR", 1.0), ("RL", -1.0), ("RR", 1.0)):  # legs crossed
        data.joint(f"{leg}_hip_joint").qpos[0] = side
    mujoco.mj_forward(model, data)
    forces = []
    for contact in range(data.ncon):
        force = np.zeros(6)
        mujoco.mj_contactForce(model, data, contact, force)
        forces.append(np.linalg.norm(force[:3]))
    assert max(forces) > 10.0
    sensed = data.sensordata[sensor_columns(model, "self_contact")]
    assert np.linalg.norm(sensed) == pytest.approx(max(forces), rel=1e-6)


def test_scenes_have_them_only_where_a_term_reads_them():
    plain = task(num_envs=1)
    assert not any(has_sensor(plain.world.model, name) for name in EXTRA_SENSORS)
    assert plain.last_state.self_force.tolist() == [[0.0] * 4]
    watched = task(num_envs=1, rewards={"terms": {"calm": {"function": "self_collision", "weight": -1.0}}})
    assert has_sensor(watched.world.model, "self_contact")
    watched.reset(0)
    assert watched.step(torch.zeros(1, 12)).infos["reward/calm"].tolist() == [0.0]  # packaged robots never do


def test_contacts_with_itself_are_counted_after_every_physics_step():
    """Against one world of plain MuJoCo, which is stepped one by one; the task goes on as without the count."""
    env = task(num_envs=2, rewards={"terms": {"self_collision": {"weight": -1.0}}})
    plain = task(num_envs=2)
    for one in (env, plain):
        one.reset(0)
    seen = []
    step = env.world.sim.step
    env.world.sim.step = lambda substeps: (step(substeps), seen.append(env.world.sim.read("sensordata").clone()))[0]
    action = 0.3 * torch.ones(2, 12)
    result, other = env.step(action), plain.step(action)
    assert len(seen) == 4
    columns = sensor_columns(env.world.model, "self_contact")
    wanted = torch.stack([data[:, columns].norm(dim=-1) for data in seen], -1)
    assert torch.equal(env.last_state.self_force, wanted)
    for name, leaf in result.final_observations.items():
        assert torch.equal(leaf, other.final_observations[name])  # stepping one by one is the same physics
