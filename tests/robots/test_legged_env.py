"""The contract of the environment, and that its state is all there is to it."""

import json

import mujoco
import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError, EnvironmentFault, tree_leaves
from rl_lab.robots.sim.cpu import CpuSim
from rl_lab.tracking.state_codec import decode, encode
from tests.robots.tasks import task

torch.set_num_threads(1)
EVERYTHING = {  # randomisation, lags, delays and histories at once
    "friction": {"mode": "reset", "params": {"range": [0.3, 1.2]}},
    "restitution": {"mode": "startup"},
    "base_mass": {"mode": "startup", "params": {"range": [-1.0, 3.0]}},
    "link_mass": {"mode": "startup"},
    "link_inertia": {"mode": "startup"},
    "base_com": {"mode": "startup", "params": {"x": [-0.05, 0.05]}},
    "gains": {"mode": "reset"},
    "motor_strength": {"mode": "reset"},
    "motor_offset": {"mode": "reset"},
    "joint_friction": {"mode": "startup", "params": {"scale": [0.5, 1.5]}},
    "joint_damping": {"mode": "startup", "params": {"scale": [0.5, 1.5]}},
    "armature": {"mode": "startup"},
    "action_lag": {"mode": "reset", "params": {"range": [0.0, 0.02]}},
    "push": {"mode": "interval", "interval_s": [0.1, 0.3], "params": {"linear": [-0.5, 0.5], "angular": [-0.5, 0.5]}},
}
DELAYED = {
    "actor": {
        "history": 3,
        "terms": {"base_ang_vel": {"noise": 0.2, "delay": [0, 2]}, "joint_pos": {"noise": 0.01, "delay": [0.5, 1.5]}},
    }
}
MOVING = {"resample_s": [0.1, 0.4], "heading": 0.5, "curriculum": {"share": 0.0, "start": 0.3}}


SHORT = {"observations": DELAYED, "commands": MOVING, "episode_s": 0.6}


def everything(num_envs=6, **changes):
    return task(num_envs=num_envs, events=EVERYTHING, **SHORT, **changes)


def actions(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(env.num_envs, 12, generator=generator) for _ in range(steps)]


def leaves(step):
    return dict(tree_leaves(step._asdict()))


def assert_equal(one, other):
    first, second = leaves(one), leaves(other)
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        assert leaf.numpy().tobytes() == second[path].numpy().tobytes(), path  # -0.0 is not 0.0


def test_a_restored_environment_goes_on_bit_for_bit():
    env = everything()
    env.reset(3)
    plan = actions(env, 60)
    for action in plan[:25]:
        env.step(action)
    tensors, structure = encode(env.get_state())
    wanted = [env.step(action) for action in plan[25:]]
    other = everything()
    other.reset(99)
    for action in plan[:4]:
        other.step(action)
    other.set_state(decode(structure, tensors))
    ended = 0
    for step, action in zip(wanted, plan[25:], strict=True):
        assert_equal(step, other.step(action))
        ended += int((step.terminated | step.truncated).sum())
    assert ended >= 6


OFTEN = {  # what no startup and no reset draws anew
    **{name: {"mode": "interval", "interval_s": 0.04} for name in ("friction", "gains", "action_lag")},
    **{name: {"mode": "step"} for name in ("motor_offset", "motor_strength", "joint_friction")},
}


@pytest.mark.parametrize("events", [{}, OFTEN])
def test_a_seed_gives_the_same_episodes_in_a_used_environment(events):
    """An evaluation only resets: what its environment has been through must not matter."""
    env, fresh = (task(num_envs=6, events=EVERYTHING | events, **SHORT) for _ in range(2))
    env.reset(5)
    for action in actions(env, 20, seed=4):
        env.step(action)
    for (_, a), (_, b) in zip(tree_leaves(env.reset(7)), tree_leaves(fresh.reset(7)), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    for action in actions(env, 40):
        assert_equal(env.step(action), fresh.step(action))


def test_final_observations_are_what_the_step_led_to():
    env = task(num_envs=8, episode_s=0.2, observations={"actor": {"noise": False}})
    env.reset(0)
    cut = torch.zeros(8, dtype=torch.bool)
    for count, action in enumerate(actions(env, 25), 1):
        step = env.step(action)
        ended = step.terminated | step.truncated
        for name, final in step.final_observations.items():
            assert torch.equal(final[~ended], step.observations[name][~ended])
        assert not (step.terminated & step.truncated).any()
        final, first = step.final_observations["actor"][ended], step.observations["actor"][ended]
        torch.testing.assert_close(final[:, -12:], action.clamp(-10, 10)[ended])  # the last action, as it was taken
        assert (first[:, -12:] == 0.0).all()
        cut |= step.truncated
        assert bool(step.truncated.all()) == (count % 10 == 0)
    assert cut.all()


def test_what_a_step_returned_is_never_written_to():
    env = everything()
    env.reset(0)
    plan = actions(env, 30)
    step = env.step(plan[0])
    copies = {path: leaf.clone() for path, leaf in leaves(step).items()}
    for action in plan[1:]:
        env.step(action)
    for path, leaf in leaves(step).items():
        assert torch.equal(leaf, copies[path]), path


def test_the_action_given_is_not_changed():
    env = task()
    env.reset(0)
    action = torch.randn(4, 12) * 30.0  # beyond the clip
    copy = action.clone()
    env.step(action)
    assert torch.equal(action, copy)


def test_the_state_is_that_of_mujoco():
    """Velocities, feet and forces against MuJoCo's own functions on one world."""
    env = task(num_envs=2)
    env.reset(0)
    for action in actions(env, 12):
        env.step(action)
    model, data = env.world.model, mujoco.MjData(env.world.model)
    data.qpos[:], data.qvel[:] = (env.world.sim.read(name)[1].double().numpy() for name in ("qpos", "qvel"))
    mujoco.mj_forward(model, data)
    state, velocity = env._read(), np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, env.world.layout.base, velocity, 1)
    np.testing.assert_allclose(state.lin_vel[1], velocity[3:], atol=1e-5)
    np.testing.assert_allclose(state.ang_vel[1], velocity[:3], atol=1e-5)
    for index, name in enumerate(env.robot.feet):
        site = model.site(name).id
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_SITE, site, velocity, 0)
        np.testing.assert_allclose(state.foot_vel[1, index], velocity[3:], atol=1e-4)
        np.testing.assert_allclose(state.foot_pos[1, index], data.site_xpos[site], atol=1e-5)
    joints = [data.joint(name).qpos[0] for name in env.robot.joint_names]
    np.testing.assert_allclose(state.joint_pos[1], joints, atol=1e-6)


def test_a_standing_robot_stands():
    env = task(
        num_envs=2, events={"reset_base": {"params": {"velocity": [0.0, 0.0]}}, "push": None, "reset_joints": None}
    )
    env.reset(0)
    for _ in range(50):
        step = env.step(torch.zeros(2, 12))
    state = env._read()
    assert state.contact.all()
    assert not step.terminated.any()
    weight = 9.81 * env.world.sim.read_model("body_mass").sum(-1)
    torch.testing.assert_close(state.foot_force[..., 2].sum(-1), weight, rtol=0.05, atol=0.0)
    torch.testing.assert_close(state.foot_height, torch.zeros(2, 4), atol=4e-3, rtol=0.0)
    torch.testing.assert_close(state.contact_time, torch.full((2, 4), 1.0), atol=0.3, rtol=0.0)
    assert float(state.base_pos[0, 2]) == pytest.approx(0.26, abs=0.03)


def test_rewards_are_the_weighted_sum_and_every_term_is_logged():
    env = task(num_envs=4)
    env.reset(0)
    total = torch.zeros(4)
    for action in actions(env, 10):
        step = env.step(action)
        total += step.rewards
        assert not (step.terminated | step.truncated).any()
    means = {name: value for name, value in step.infos.items() if name.startswith("reward/")}
    assert set(means) == {f"reward/{term.name}" for term in env.rewards.terms}
    torch.testing.assert_close(sum(means.values()) * 10 * env.world.facts.dt, total, atol=1e-5, rtol=1e-4)
    assert (step.infos["velocity_error"] > 0.0).all()


def test_falls_end_the_task_and_time_only_cuts_it():
    env = task(num_envs=4, episode_s=0.5, events={"reset_base": {"params": {"tilt": [1.5, 1.5]}}})
    env.reset(0)
    step = env.step(torch.zeros(4, 12))
    assert step.terminated.all()
    assert not step.truncated.any()
    assert (step.infos["ended/tilted"] == 1.0).all()


def test_positive_rewards_only_still_let_a_fall_cost():
    old = dict.fromkeys(term.name for term in task().rewards.terms)  # null takes a term away
    terms = {**old, "lin_vel_z": {"weight": -100.0}, "termination": {"weight": -5.0}}
    over = {"reset_base": {"params": {"tilt": [1.5, 1.5], "velocity": [-2.0, -2.0]}}}
    env = task(rewards={"only_positive": True, "terms": terms}, events=over)
    env.reset(0)
    torch.testing.assert_close(env.step(torch.zeros(4, 12)).rewards, torch.full((4,), -5.0 * 0.02))


def test_a_foreign_state_is_refused():
    env = task(num_envs=2)
    env.reset(0)
    with pytest.raises(EnvironmentFault, match="has 4 worlds and cannot go on from 2 worlds"):
        task(num_envs=4).set_state(env.get_state())


def test_describe_is_a_plain_tree_that_a_controller_can_use():
    env = everything()
    facts = env.describe()
    assert facts["joint_names"][0] == "FL_hip_joint"
    assert facts["kp"] == [25.0] * 12
    assert facts["default"][:3] == [0.1, 0.8, -1.5]
    assert facts["control_hz"] == pytest.approx(50.0)
    actor = facts["observations"]["actor"]
    assert [term["name"] for term in actor][:2] == ["base_lin_vel", "base_ang_vel"]
    assert sum(term["width"] * term["history"] for term in actor) == env.spec.observation["actor"].shape[0]
    assert facts["command_ranges"]["vx"] == [-1.0, 1.0]
    assert facts["gait"]["feet"] == ["FL_foot", "FR_foot", "RL_foot", "RR_foot"]
    assert facts["gait"]["offsets"] == [0.0, 0.5, 0.5, 0.0]  # a trot
    assert facts["gait"]["stance"] == 0.5
    assert facts["scan_points"] == []
    assert json.loads(json.dumps(facts)) == facts


def test_describe_tells_where_heights_are_scanned():
    scan = {"length": 0.4, "width": 0.2, "spacing": 0.2}
    env = task("legged_quadruped_rough", 1, terrain={"num_levels": 1, "num_columns": 1, "scan": scan})
    points = env.describe()["scan_points"]
    assert torch.tensor(points).allclose(torch.cartesian_prod(torch.tensor([-0.2, 0, 0.2]), torch.tensor([-0.1, 0.1])))
    terms = {term["name"]: term for term in env.describe()["observations"]["critic"]}
    assert terms["height_scan"]["width"] == len(points)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"robot": "quadroped"}, r"environment.robot: unknown robot 'quadroped'; did you mean 'quadruped'"),
        ({"rewards": {"terms": {"feet_stumbl": {"weight": 1.0}}}}, r"unknown function 'feet_stumbl'; did you mean"),
        ({"rewards": {"terms": {"torques": {"weight": "much"}}}}, r"terms.torques.weight: must be a number"),
        (
            {"rewards": {"terms": {"collision": {"params": {"bodies": ["wing"]}}}}},
            r"collision.params.bodies: unknown name 'wing' .choices: FL_calf",
        ),
        ({"rewards": {"terms": {"joint_deviation": {"weight": 1.0}}}}, r"params.joints: joint_deviation needs it"),
        ({"terminations": {"fallen": {}}}, r"environment.terminations.fallen.params.height: fallen needs it"),
        ({"events": {"push": {"mode": "sometimes"}}}, r"environment.events.push: unknown mode 'sometimes'"),
        ({"events": {"push": {"interval_s": None}}}, r"environment.events.push.interval_s: an event of mode interval"),
        ({"commands": {"vz": [0, 1]}}, r"environment.commands: unknown key 'vz'"),
        ({"commands": {"gait": {"offsets": [0.0]}}}, r"gait.offsets: has 1 numbers, but there are 4 feet"),
        ({"simulation": {"time_step": 1}}, r"environment.simulation: unknown key 'time_step'; did you mean 'timestep'"),
        ({"control": {"joints": {"*_wing": {"kp": 1.0}}}}, r"'\*_wing'"),
        ({"commands": {"curriculum": {"reward": "track"}}}, r"curriculum.reward: unknown reward term 'track'"),
        ({"terrain": {"tile": {}}}, r"environment.terrain: unknown key 'tile'"),
        (
            {"events": {"foot_geoms": {"mode": "reset"}}},
            r"environment.events.foot_geoms: unknown function 'foot_geoms'",
        ),
        (
            {"events": {"friction": {"params": {"range": [1.0]}}}},
            r"environment.events.friction.params.range: must be \[low, high\] or one number, not \[1.0\]",
        ),
        ({"events": {"friction": {"params": {"range": [2, 1]}}}}, r"range: the lower end 2 is above the upper end 1"),
        ({"events": {"push": {"interval_s": [0, 5]}}}, r"environment.events.push.interval_s: must be above 0"),
        ({"control": {"substeps": 0}}, r"environment.control.substeps: must be a whole number from 1, got 0"),
        ({"control": {"action_clip": 0}}, r"environment.control.action_clip: must be above 0, got 0"),
        ({"simulation": {"timestep": 0.0}}, r"environment.simulation.timestep: must be above 0"),
        ({"episode_s": 0.0}, r"environment.episode_s: must be above 0"),
        ({"commands": {"standing": 1.5}}, r"environment.commands.standing: is a share between 0 and 1, got 1.5"),
        ({"commands": {"smallest": 0.1}}, r"environment.commands.smallest: must be two numbers"),
        ({"commands": {"gait": {"cycle_s": 0}}}, r"environment.commands.gait.cycle_s: must be above 0"),
        ({"commands": {"curriculum": {"start": 2.0}}}, r"curriculum.start: is a share between 0 and 1"),
        ({"commands": {"gait": {"offsets": 0.5}}}, r"gait.offsets: must be a list of numbers, not 0.5"),
        ({"commands": {"gait": {"offsets": [0, 0, "x", 0]}}}, r"gait.offsets: must be a number, not 'x'"),
        (
            {"simulation": {"actuator_delay": 0.012}},
            r"actuator_delay: 0.012 s is no multiple of the timestep of 0.005 s",
        ),
        ({"simulation": {"actuator_delay": -0.005}}, r"simulation.actuator_delay: must be 0 or above, got -0.005"),
        ({"simulation": {"iterations": 0}}, r"simulation.iterations: must be a whole number from 1, got 0"),
        ({"simulation": {"ls_iterations": 1.5}}, r"simulation.ls_iterations: must be a whole number from 1, got 1.5"),
        (
            {"events": {"action_lag": {"mode": "reset", "params": {"range": [-0.01, 0.02]}}}},
            r"environment.events.action_lag.params.range: must be 0 or above, got -0.01",
        ),
        ({"terrain": {"scan": {"spacing": 0}}}, r"environment.terrain.scan.spacing: must be above 0, got 0"),
        ({"terrain": {"scan": {"width": -1}}}, r"environment.terrain.scan.width: must be 0 or above, got -1"),
        (
            {"terrain": {"first_levels": "x"}},
            r"environment.terrain.first_levels: must be a whole number from 1, got 'x'",
        ),
        ({"terrain": {"border": -1}}, r"terrain.border: must be 0 or above, got -1"),
        ({"terrain": {"difficulty": "hard"}}, r"terrain.difficulty: must be a list of numbers, not 'hard'"),
        ({"terrain": {"difficulty": [0.1]}}, r"terrain.difficulty: must be two numbers in \[0, 1\]"),
        ({"terrain": {"tiles": ["flat"]}}, r"terrain.tiles: must be a dict of kinds and their shares"),
        ({"terrain": {"tiles": {"flat": "x"}}}, r"terrain.tiles.flat: must be a number, not 'x'"),
        ({"terrain": {"num_levels": 2.5}}, r"terrain.num_levels: must be a whole number from 1, got 2.5"),
        ({"observations": {"actor": {"history": "x"}}}, r"observations.actor.history: must be a whole number from 1"),
        (
            {"observations": {"actor": {"terms": {"actions": {"history": 2.5}}}}},
            r"observations.actor.terms.actions.history: must be a whole number from 1, got 2.5",
        ),
        (
            {"rewards": {"terms": {"joint_deviation": {"params": {"joints": []}}}}},
            r"joint_deviation.params.joints: names nothing \(choices: FL_hip_joint",
        ),
        (
            {"rewards": {"terms": {"body_distance": {"params": {"pair": ["*_calf"]}}}}},
            r"body_distance.params.pair: must name two bodies, not 4",
        ),
        ({"observations": {"actor": {"noise": 1.5}}}, r"observations.actor.noise: must be true or false, not 1.5"),
        ({"rewards": {"only_positive": "no"}}, r"environment.rewards.only_positive: must be true or false, not 'no'"),
        ({"rewards": {"scale_by_dt": 0.02}}, r"environment.rewards.scale_by_dt: must be true or false, not 0.02"),
        ({"rewards": {"terms": None}}, r"environment.rewards.terms: needs at least one term with a weight"),
        (
            {"rewards": {"terms": {"track_lin_vel": {"params": {"vertical": "no"}}}}},
            r"terms.track_lin_vel.params.vertical: must be true or false, not 'no'",
        ),
        (
            {"rewards": {"terms": {"base_height": {"params": {"target": "0.3"}}}}},
            r"terms.base_height.params.target: must be a number, not '0.3'",
        ),
        ({"terminations": {"tilted": {"time_out": "no"}}}, r"terminations.tilted.time_out: must be true or false"),
        ({"terrain": {"curriculum": "off"}}, r"environment.terrain.curriculum: must be true or false, not 'off'"),
        ({"control": {"joints": {"*": {"damping": "x"}}}}, r"joint 'FL_hip_joint': damping: must be a number"),
        (
            {"observations": {"critic": {"terms": {"height_scan": {}}}}},
            r"environment.terrain.scan: height_scan needs it, such as",
        ),
    ],
)
def test_bad_configs_are_refused_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        task(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("part", "term", "message"),
    [
        ("rewards", "feet_distance", "rewards.terms.feet_distance: needs 2 or more feet, this robot has 0"),
        ("rewards", "air_time_variance", "rewards.terms.air_time_variance: needs 2 or more feet, this robot has 0"),
        ("rewards", "feet_contact_number", "rewards.terms.feet_contact_number: needs 1 or more feet, this robot has 0"),
        ("observations", "foot_height", "actor.terms.foot_height: robot and ground have nothing for foot_height"),
    ],
)
def test_a_ball_has_no_feet(part, term, message):
    terms = {"terms": {term: {}}}
    with pytest.raises(ConfigError, match=message):
        task("legged_rotunbot", **{part: {"actor": terms} if part == "observations" else terms})


def test_a_pose_may_have_a_width_for_each_joint():
    params = {"joints": "FL_*", "standing": [0.1, 0.2, 0.3], "walking": 0.5}
    env = task(num_envs=2, rewards={"terms": {"pose": {"params": params}}})
    env.reset(0)
    pose = env.step(torch.zeros(2, 12)).infos["reward/pose"]
    error = (env.last_state.joint_pos - env.world.facts.default_pos)[:, :3]
    stands = env.last_state.command.norm(dim=-1, keepdim=True) < 0.1
    width = torch.where(stands, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.5, 0.5]))
    torch.testing.assert_close(pose, torch.exp(-(error / width).square().mean(-1)))
    env = task(rewards={"terms": {"pose": {"params": {**params, "walking": [0.5]}}}})
    env.reset(0)
    with pytest.raises(ConfigError, match="pose: walking has 1 numbers, but there are 3 joints"):
        env.step(torch.zeros(4, 12))


@pytest.mark.parametrize("name", ["legged_pm01", "legged_sa01_rough"])
def test_the_default_pose_is_that_of_roll_and_yaw_whatever_their_columns(name):
    """The original took columns 0 and 1 of a leg, which are pitch and roll on a PM01."""
    small = {"terrain": {"num_levels": 1, "num_columns": 1}} if name.endswith("rough") else {}
    env = task(name, num_envs=1, **small)
    (term,) = [term for term in env.rewards.terms if term.name == "default_joint_pos"]
    chosen = {env.robot.joint_names[int(column)] for column in term.params["joints"]}
    assert chosen == {f"{side}_hip_{axis}" for side in ("left", "right") for axis in ("roll", "yaw")}
    env.reset(0)
    turned = {}
    for column, joint in enumerate(env.robot.joint_names):
        state = env._read()
        state.joint_pos = env.world.facts.default_pos.expand(1, -1).clone()
        state.joint_pos[0, column] += 0.2
        turned[joint] = float(term(state))
    assert {joint for joint, value in turned.items() if value < 0.5} == chosen


def test_an_environment_tells_whether_its_steps_repeat(monkeypatch):
    assert task().spec.exact_steps
    monkeypatch.setattr(CpuSim, "deterministic", False)
    assert not task().spec.exact_steps


def test_a_term_of_your_own_is_named_by_its_module():
    own = {
        "function": "tests.robots.own_terms:calm_knees",
        "weight": -1.0,
        "params": {"joints": "*_calf_joint", "limit": 0.0},
    }
    env = task(rewards={"terms": {"calm_knees": own}})
    env.reset(0)
    step = env.step(torch.ones(4, 12))
    speed = env.last_state.joint_vel[:, 2::3].abs().sum(-1)
    torch.testing.assert_close(step.infos["reward/calm_knees"], -speed)
    with pytest.raises(ConfigError, match="'tests.robots.own_terms:wild_knees' is not a function"):
        task(rewards={"terms": {"calm_knees": {"function": "tests.robots.own_terms:wild_knees"}}})


@pytest.mark.parametrize("name", ["legged_quadruped", "legged_pm01", "legged_sa01_rough", "legged_rotunbot"])
def test_every_action_drives_the_joint_of_its_name(name):
    small = {"terrain": {"num_levels": 1, "num_columns": 1}} if name.endswith("rough") else {}
    env = task(name, num_envs=1, events={"motor_offset": None}, **small)
    env.reset(0)
    model = env.world.model
    names = env.robot.joint_names
    assert len(set(names)) == len(names) == model.nu
    for column, joint in enumerate(env.robot.joints):
        action = torch.zeros(1, len(names))
        action[0, column] = 0.5
        env.step(action)
        actuator = model.actuator(joint.name)
        assert model.joint(int(actuator.trnid[0])).name == joint.name
        rest = 0.0 if joint.control == "velocity" else joint.default
        wanted = rest + 0.5 * joint.action_scale
        assert float(env.world.sim.read("ctrl")[0, actuator.id]) == pytest.approx(wanted, abs=1e-6)
