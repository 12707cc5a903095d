"""The CPU backend: equal to plain MuJoCo, to itself at any number of threads, and to itself after a restore."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError, EnvironmentFault
from rl_lab.environments import offscreen
from rl_lab.robots.models.layout import layout_of
from rl_lab.robots.models.quadruped import quadruped
from rl_lab.robots.models.scene import Physics, compile_scene
from rl_lab.robots.sim import make_sim
from rl_lab.robots.sim.guard import load_dump

NUM = 6
DELAYED = Physics(actuator_delay=0.01, max_actuator_delay=0.02)


@pytest.fixture(scope="module")
def model():
    return compile_scene(quadruped())


@pytest.fixture(scope="module")
def delayed():
    return compile_scene(quadruped(), physics=DELAYED)


def targets(model, steps, seed=0, num=NUM):
    home = torch.as_tensor(model.key_ctrl[0], dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    return home + 0.4 * torch.rand(steps, num, model.nu, generator=generator) - 0.2


def run(sim, controls):
    for control in controls:
        sim.write("ctrl", control)
        sim.step(4)


def test_it_is_plain_mujoco(model):
    sim = make_sim(model, NUM, num_threads=2)
    controls = targets(model, 20)
    run(sim, controls)
    for world in (0, 4):
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        for control in controls:
            data.ctrl[:] = control[world]
            mujoco.mj_step(model, data, 4)
        forces = data.sensordata.copy()
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_sensorPos(model, data)
        mujoco.mj_fwdVelocity(model, data)
        mujoco.mj_sensorVel(model, data)
        for name in ("qpos", "qvel", "xpos", "site_xpos", "cvel", "sensordata", "actuator_force"):
            assert np.array_equal(sim.read(name)[world].numpy(), getattr(data, name).astype(np.float32)), name
        contact = layout_of(model, quadruped()).contacts["FL_foot"][0]
        assert np.array_equal(data.sensordata[contact], forces[contact])  # forces are those of the last substep


def test_the_number_of_threads_does_not_matter(model):
    controls = targets(model, 15)
    states = []
    for threads in (1, 2, 3):
        sim = make_sim(model, NUM, num_threads=threads)
        run(sim, controls)
        states.append(sim.get_state()["rows"])
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


FIELDS = ("body_mass", "geom_friction", "actuator_delay", "actuator_gainprm", "opt.gravity")


def randomized(delayed, threads=2):
    sim = make_sim(delayed, NUM, randomized=FIELDS, num_threads=threads)
    generator = torch.Generator().manual_seed(3)
    sim.write_model("body_mass", sim.read_model("body_mass") * (0.8 + 0.4 * torch.rand(NUM, 1, generator=generator)))
    sim.write_model("actuator_delay", torch.arange(NUM)[:, None].expand(-1, 12) % 4 * 0.005)
    sim.write_model("opt.gravity", torch.tensor([0.0, 0, -9.81]) + 0.1 * torch.rand(NUM, 3, generator=generator))
    sim.recompute()
    sim.forward()
    return sim


def test_a_restored_simulation_goes_on_bit_for_bit(delayed):
    sim = randomized(delayed)
    for name in ("sensordata", "actuator_force", "xpos"):
        sim.read(name)
    run(sim, targets(delayed, 7))
    sim.write("xfrc_applied", torch.randn(NUM, delayed.nbody, 6) * 3)
    sim.reset(torch.arange(NUM) == 2)
    sim.forward()
    saved = sim.get_state()
    seen = {name: sim.read(name).clone() for name in ("sensordata", "actuator_force", "xpos", "qpos")}
    run(sim, targets(delayed, 9, seed=1))
    again = make_sim(delayed, NUM, randomized=FIELDS, num_threads=1)
    run(again, targets(delayed, 3, seed=5))
    again.set_state(saved)
    for name, values in seen.items():
        assert torch.equal(again.read(name), values), name
    run(again, targets(delayed, 9, seed=1))
    assert torch.equal(sim.get_state()["rows"], again.get_state()["rows"])
    assert torch.equal(sim.read("sensordata"), again.read("sensordata"))
    for name in FIELDS:
        assert torch.equal(sim.read_model(name), again.read_model(name))


def test_a_state_of_another_size_is_refused(model):
    state = make_sim(model, 2).get_state()
    with pytest.raises(EnvironmentFault, match="2 worlds.*does not fit 3"):
        make_sim(model, 3).set_state(state)


def test_worlds_have_their_own_masses_and_constants(model):
    sim = make_sim(model, 3, randomized=["body_mass"])
    scale = torch.tensor([1.0, 1.5, 0.7])[:, None]
    sim.write_model("body_mass", sim.read_model("body_mass") * scale)
    sim.recompute()
    run(sim, targets(model, 5, num=3))
    for world in range(3):
        own = compile_scene(quadruped())
        own.body_mass[:] = (own.body_mass.astype(np.float32) * scale[world].numpy()).astype(np.float64)
        data = mujoco.MjData(own)
        mujoco.mj_setConst(own, data)
        mujoco.mj_resetDataKeyframe(own, data, 0)
        for control in targets(model, 5, num=3):
            data.ctrl[:] = control[world]
            mujoco.mj_step(own, data, 4)
        assert np.array_equal(sim.read("qpos")[world].numpy(), data.qpos.astype(np.float32))


def test_only_masked_worlds_are_written_and_reset(model):
    sim = make_sim(model, 4)
    run(sim, targets(model, 5, num=4))
    before = sim.read("qpos").clone()
    mask = torch.tensor([False, True, False, True])
    sim.reset(mask)
    home = torch.as_tensor(model.key_qpos[0], dtype=torch.float32)
    assert torch.equal(sim.read("qpos"), torch.where(mask[:, None], home, before))
    assert torch.equal(sim.read("qvel")[mask], torch.zeros(2, model.nv))
    sim.write("qpos", home.expand(4, -1) + 1, torch.tensor([True, False, False, False]))
    assert torch.equal(sim.read("qpos")[:3], torch.stack([home + 1, home, before[2]]))
    sim.forward()
    assert torch.allclose(sim.read("xpos")[0, 1], home[:3] + 1)
    contacts = layout_of(model, quadruped()).contacts
    assert sim.read("sensordata")[1, contacts["FL_foot"][0]].abs().sum() == 0  # not of the episode before
    assert sim.read("sensordata")[2, contacts["FL_foot"][0]].abs().sum() > 0


def test_derived_fields_are_current_after_a_step(model):
    sim = make_sim(model, 2)
    run(sim, targets(model, 3, num=2))
    data = mujoco.MjData(model)
    data.qpos[:] = sim.get_state()["rows"][0, 1 : 1 + model.nq]
    mujoco.mj_kinematics(model, data)
    assert np.array_equal(sim.read("xpos")[0].numpy(), data.xpos.astype(np.float32))


def test_a_world_that_is_not_finite_is_reported_and_can_be_repeated(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its own log there
    sim = make_sim(model, 3, dump_dir=tmp_path / "dumps")
    run(sim, targets(model, 2, num=3))
    sim.check()
    velocities = sim.read("qvel").clone()
    velocities[1, 7] = 2.0**40
    sim.write("qvel", velocities)
    sim.step(4)
    with pytest.raises(EnvironmentFault, match=r"1 of 3 worlds \(1\) were not finite in step 3") as error:
        sim.check()
    assert "\n" not in str(error.value)
    dump = load_dump(next((tmp_path / "dumps").iterdir()))
    assert dump.data.qvel[7] == 2.0**40
    assert dump.substeps == 4
    assert np.allclose(dump.data.ctrl, targets(model, 2, num=3)[1, 1])
    sim.check()  # reported once


def test_controls_that_are_not_numbers_are_reported(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sim = make_sim(model, 2, dump_dir=tmp_path)
    sim.write("ctrl", torch.full((2, model.nu), torch.nan))
    sim.step(1)
    with pytest.raises(EnvironmentFault, match=r"2 of 2 worlds \(0, 1\) were not finite"):
        sim.check()


def test_rays_see_the_floor_and_not_the_robot(model):
    sim = make_sim(model, 2)
    origins = torch.tensor([[0.0, 0, 2], [0.3, 0.1, 1]]).expand(2, 2, 3)
    down = torch.tensor([0.0, 0, -1]).expand(2, 2, 3)
    assert torch.allclose(sim.rays(origins, down), torch.tensor([2.0, 1.0]).expand(2, 2))
    assert torch.equal(sim.rays(origins, -down), torch.full((2, 2), -1.0))


def test_wrong_names_list_the_choices(model):
    with pytest.raises(ConfigError, match="unknown model field to randomize 'body_mas'; did you mean 'body_mass'"):
        make_sim(model, 1, randomized=["body_mas"])
    sim = make_sim(model, 1, randomized=["body_mass"])
    with pytest.raises(ConfigError, match=r"unknown randomized model field 'geom_friction' \(choices: body_mass\)"):
        sim.read_model("geom_friction")
    with pytest.raises(ConfigError, match="unknown data field 'qpo'; did you mean 'qpos'"):
        sim.read("qpo")
    with pytest.raises(ConfigError, match="unknown field to write 'xpos'.*choices: ctrl, qpos, qvel, xfrc_applied"):
        sim.write("xpos", torch.zeros(1))
    with pytest.raises(ConfigError, match=r"unknown simulation backend 'gpu'.*\(choices: auto, cpu, warp\)"):
        make_sim(model, 1, backend="gpu")
    with pytest.raises(ConfigError, match="num_envs must be 1 or more, got 0"):
        make_sim(model, 0)


def test_a_picture_shows_the_robot(model):
    sim = make_sim(model, 2)
    try:
        drawn = sim.render(1, 64, 48)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))  # a machine without OpenGL
    assert drawn.shape == (48, 64, 3)
    assert drawn.dtype == torch.uint8
    assert drawn.float().std() > 5
    sim.close()


@pytest.mark.parametrize("what", ["no display", "no drawing"])
def test_without_opengl_a_picture_is_one_line_and_all_is_freed(what, model, monkeypatch):
    class Context:
        is_free = False

        def make_current(self):
            """Do nothing."""

        def free(self):
            self.is_free = True

    def fail(*arguments):
        raise mujoco.FatalError("an OpenGL platform library\nhas not been loaded")

    context = Context()
    if what == "no display":
        monkeypatch.setenv("MUJOCO_GL", "glfw")
        monkeypatch.setattr(offscreen, "has_display", lambda: False)
    else:
        monkeypatch.setattr(offscreen, "new_context", lambda *size: context)
        monkeypatch.setattr(mujoco, "MjrContext", fail)
    sim = make_sim(model, 1, backend="cpu")
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match=r"no OpenGL to draw with \(.*(display|library has not)"):
            sim.render()
    sim.close()
    assert what == "no display" or context.is_free


def test_room_for_contacts_grows_with_the_robot_and_the_ground(model):
    from rl_lab.robots.models.bipeds import g1
    from rl_lab.robots.sim.sizes import constraint_room, contact_room
    from rl_lab.robots.terrain.terrain import Terrain

    # trunk 4, head 1, and for each leg hip 4, thigh 2, calf 2, foot 1; half of them at a time
    assert contact_room(model) == (5 + 4 * 9) // 2
    assert constraint_room(model) == 112  # 20 contacts x 4 rows + 12 friction + 12 limits, in sixteens
    assert contact_room(compile_scene(g1())) == 16
    rough = compile_scene(quadruped(), Terrain({"rough": 1.0}, 1, 1, tile_size=4.0))
    assert contact_room(rough) == 2 * (5 + 4 * 9)
    boxes = compile_scene(quadruped(), Terrain({"rough": 1.0}, 1, 1, tile_size=4.0, shape="boxes"))
    assert contact_room(boxes) == 3 * (5 + 4 * 9) // 2


def test_too_small_a_buffer_for_contacts_fails_loudly(tmp_path, monkeypatch):
    """Six boxes side by side: 32 contacts fit into 32 KB, 44 are there. Both kinds of a lost contact count."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its own log there
    body = '<body pos="{} 0 0.03"><freejoint/><geom type="box" size=".03 .03 .03" condim="1"/></body>'
    boxes = "".join(body.format(0.05 * i) for i in range(6))
    text = '<mujoco><size memory="{}"/><worldbody><geom type="plane" size="5 5 1"/>{}</worldbody></mujoco>'
    sim = make_sim(mujoco.MjModel.from_xml_string(text.format("32K", boxes)), 3)
    sim.step(1)
    with pytest.raises(
        EnvironmentFault, match="the contact buffer was too small in world 0, 1, 2: raise <size memory>"
    ):
        sim.check()
    sim.check()  # it was told
    roomy = make_sim(mujoco.MjModel.from_xml_string(text.format("1M", boxes)), 3)
    roomy.step(1)
    roomy.check()


def test_too_little_memory_to_compile_is_one_line():
    robot = quadruped()
    small = robot.mjcf.replace("<worldbody>", '<size memory="1K"/><worldbody>', 1)
    with pytest.raises(ConfigError, match="robot 'quadruped': MuJoCo cannot compile it: .*out of memory") as error:
        compile_scene(replace(robot, mjcf=small))
    assert "\n" not in str(error.value)
