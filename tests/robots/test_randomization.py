"""Domain randomisation as the simulation feels it, and what the original had wrong about it."""

import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.robots.mdp.foot_geoms import foot_geoms
from tests.robots.tasks import task

torch.set_num_threads(1)
NONE = {"reset_base": None, "reset_joints": None, "friction": None, "base_mass": None, "push": None}
PLAIN = {"observations": {"critic": {"terms": {"friction": None}}}}


def env_with(num_envs=32, **entries):
    env = task(num_envs=num_envs, events={**NONE, **entries}, **PLAIN)
    env.reset(1)
    return env


def seen(env, step, group, term):
    """Return the columns of a term in what a step observed."""
    made = env.observations.groups[group]
    index = [t.name for t in made.terms].index(term)
    return step.observations[group].split(made.widths, -1)[index]


def model_default(env, name):
    return torch.as_tensor(getattr(env.world.model, name), dtype=torch.float32)


def test_link_masses_are_drawn_without_touching_the_centre_of_mass():
    env = env_with(link_mass={"mode": "startup", "params": {"range": [0.8, 1.2]}})
    mass, default = env.world.sim.read_model("body_mass"), model_default(env, "body_mass")
    factor = mass[:, 1:] / default[1:]
    base = env.world.layout.base - 1
    assert (factor[:, base] == 1.0).all()
    others = torch.cat((factor[:, :base], factor[:, base + 1 :]), -1)
    assert 0.8 <= float(others.min()) < 0.83
    assert 1.17 < float(others.max()) <= 1.2
    assert float(others.std(0).min()) > 0.05  # each link and world its own
    inertia = env.world.sim.read_model("body_inertia") / model_default(env, "body_inertia").clamp_min(1e-12)
    torch.testing.assert_close(inertia[:, 1:, 0], factor)
    torch.testing.assert_close(env.world.randomized["link_mass"], others)


def test_masses_compose_and_never_add_up_over_episodes():
    entries = {
        "base_mass": {"mode": "reset", "params": {"range": [1.0, 1.0]}},
        "link_mass": {"mode": "reset", "params": {"range": [1.1, 1.1]}},
        "link_inertia": {"mode": "reset", "params": {"range": [1.2, 1.2]}},
    }
    env = env_with(num_envs=2, **entries)
    for seed in range(3):
        env.reset(seed)
    mass, default = env.world.sim.read_model("body_mass")[0], model_default(env, "body_mass")
    base = env.world.layout.base
    assert float(mass[base]) == pytest.approx(float(default[base]) + 1.0)
    assert float(mass[base + 1]) == pytest.approx(1.1 * float(default[base + 1]))
    inertia = env.world.sim.read_model("body_inertia")[0, base + 1, 0]
    assert float(inertia) == pytest.approx(1.1 * 1.2 * float(model_default(env, "body_inertia")[base + 1, 0]))


def test_each_axis_of_the_centre_of_mass_has_its_own_draw():
    axes = {"x": [-0.05, 0.05], "y": [-0.02, 0.02], "z": [0.01, 0.01]}
    env = env_with(base_com={"mode": "startup", "params": axes})
    base = env.world.layout.base
    moved = env.world.sim.read_model("body_ipos")[:, base] - model_default(env, "body_ipos")[base]
    assert float(moved[:, 0].abs().max()) > 0.04
    assert 0.01 < float(moved[:, 1].abs().max()) <= 0.02
    torch.testing.assert_close(moved[:, 2], torch.full((32,), 0.01))
    assert abs(float(torch.corrcoef(moved[:, :2].T)[0, 1])) < 0.6


def test_motor_strength_is_drawn_per_episode_and_not_per_step():
    env = env_with(motor_strength={"mode": "reset", "params": {"range": [0.5, 1.5]}})
    first = env.world.sim.read_model("actuator_gainprm").clone()
    for _ in range(5):
        env.step(torch.zeros(32, 12))
    assert torch.equal(env.world.sim.read_model("actuator_gainprm"), first)
    env.reset(2)
    assert not torch.equal(env.world.sim.read_model("actuator_gainprm"), first)


def test_strength_and_gains_multiply_the_torque():
    """tau = strength (kp factor kp (target - q) - kd factor kd qd), from the fields the simulation uses."""
    entries = {
        "gains": {"mode": "startup", "params": {"kp": [0.8, 1.2], "kd": [0.5, 1.5]}},
        "motor_strength": {"mode": "startup", "params": {"range": [0.7, 1.3]}},
    }
    env = env_with(num_envs=4, **entries)
    env.step(0.2 * torch.ones(4, 12))
    factors = env.world.factors
    gain, bias = (env.world.sim.read_model(f"actuator_{name}prm") for name in ("gain", "bias"))
    torch.testing.assert_close(gain[:, :, 0], 25.0 * factors["kp"] * factors["strength"])
    torch.testing.assert_close(bias[:, :, 1], -25.0 * factors["kp"] * factors["strength"])
    torch.testing.assert_close(bias[:, :, 2], -0.5 * factors["kd"] * factors["strength"])
    assert float(factors["strength"].std()) > 0.05


def test_dry_friction_acts_against_the_motion():
    """The original's `viscous * qd + coulomb` pushed half of the joints on; here friction only ever takes energy."""
    env = env_with(
        num_envs=2,
        joint_friction={"mode": "startup", "params": {"scale": [0.0, 0.0], "add": [1.5, 1.5]}},
        reset_joints={"mode": "reset", "params": {"velocity": [-4.0, 4.0]}},
    )
    before = env.world.sim.read("qvel")[:, 6:].clone()
    env.world.sim.step(1)
    force = env.world.sim.read("qfrc_constraint")[:, 6:]
    moving = before.abs() > 1.0
    assert moving.any()
    assert (torch.sign(force[moving]) == -torch.sign(before[moving])).float().mean() > 0.95


def test_controllers_believe_their_encoders():
    """kp (target - (q + offset)): the true angle ends lower by the offset, and the policy reads what it asked for."""
    env = env_with(4, motor_offset={"mode": "startup", "params": {"range": [-0.1, 0.1]}})
    offset = env.world.randomized["motor_offset"]
    step = env.step(torch.zeros(4, 12))
    torch.testing.assert_close(env.world.sim.read("ctrl"), env.world.facts.default_pos - offset)
    true = env._read().joint_pos - env.world.facts.default_pos
    torch.testing.assert_close(seen(env, step, "critic", "joint_pos"), true)
    (actor,) = [term for term in env.observations.groups["actor"].terms if term.name == "joint_pos"]
    torch.testing.assert_close(actor(env._read()), true + offset)


def test_an_action_lag_delays_the_torque_by_that_many_physics_steps():
    """0, 5 or 10 ms of a 20 ms step: the joint has moved less the later the target came."""
    moved = []
    for lag in (0.0, 0.005, 0.01, 0.02):
        env = env_with(2, action_lag={"mode": "reset", "params": {"range": [lag, lag]}})
        for _ in range(100):
            env.step(torch.zeros(2, 12))
        start = env._read().joint_pos.clone()
        env.step(torch.ones(2, 12))
        moved.append(float((env._read().joint_pos - start).abs().mean()))
    assert moved[0] > 1.2 * moved[1] > 1.44 * moved[2] > 1.7 * moved[3]
    assert moved[3] < 0.05 * moved[0]  # the target comes when the step is over


def test_a_fresh_world_does_not_feel_targets_of_the_last_episode():
    env = env_with(2, action_lag={"mode": "reset", "params": {"range": [0.02, 0.02]}})
    for _ in range(5):
        env.step(3.0 * torch.ones(2, 12))
    env.reset(0)
    start = env._read().joint_pos.clone()
    env.step(torch.zeros(2, 12))
    assert float((env._read().joint_pos - start).abs().max()) < 0.06


def test_friction_is_that_of_the_feet_and_known_to_the_critic():
    env = task(num_envs=16)
    env.reset(3)
    feet = foot_geoms(env.world)
    names = [env.world.model.geom(int(i)).name for i in feet]
    assert names == ["FL_foot", "FR_foot", "RL_foot", "RR_foot"]
    sliding = env.world.sim.read_model("geom_friction")[:, feet, 0]
    assert float(sliding.std(0).min()) > 0.1
    assert float(sliding.std(1).max()) == 0.0
    observed = seen(env, env.step(torch.zeros(16, 12)), "critic", "friction")
    torch.testing.assert_close(observed[:, 0], sliding[:, 0])


def test_restitution_takes_damping_from_contacts_and_not_their_stiffness():
    """Damping ratio -ln e / sqrt(pi^2 + ln^2 e); MuJoCo's stiffness is 1 / (time constant * ratio)^2."""
    for value, wanted in ((0.0, 0.910), (0.4, 0.280), (0.8, 0.0708)):
        env = env_with(2, restitution={"mode": "startup", "params": {"range": [value, value]}})
        foot = int(foot_geoms(env.world)[0])
        time, ratio = env.world.sim.read_model("geom_solref")[0, foot].tolist()
        assert ratio == pytest.approx(wanted, abs=2e-3)
        assert time * ratio == pytest.approx(float(model_default(env, "geom_solref")[foot].prod()), rel=1e-5)
    with pytest.raises(ConfigError, match=r"restitution lies in \[0, 1\)"):
        env_with(2, restitution={"mode": "startup", "params": {"range": [0.0, 1.0]}})


def test_a_robot_with_bouncing_feet_still_stands():
    env = env_with(8, restitution={"mode": "startup", "params": {"range": [0.0, 0.4]}})
    for _ in range(60):
        step = env.step(torch.zeros(8, 12))
    assert not step.terminated.any()
    assert env.last_state.contact.all()
    assert float(env.last_state.joint_vel.abs().max()) < 0.5


def test_pushes_come_at_their_intervals_and_add_to_the_velocity():
    entries = {"push": {"mode": "interval", "interval_s": [0.2, 0.2], "params": {"linear": [0.5, 0.5]}}}
    env = env_with(4, **entries)
    pushed = []
    for step in range(30):
        before = env.world.sim.read("qvel")[:, 0].clone()
        env._events.advance(env.world)
        gained = env.world.sim.read("qvel")[:, 0] - before
        if float(gained.max()) > 0:
            pushed.append(step)
            torch.testing.assert_close(gained, torch.full((4,), 0.5), atol=1e-6, rtol=0.0)
    assert pushed == [9, 19, 29]
    torch.testing.assert_close(env.world.push[:, 0], torch.full((4,), 0.5))


def test_a_push_at_a_reset_is_felt_and_told():
    env = env_with(4, push={"mode": "reset", "params": {"linear": [0.5, 0.5]}})
    assert torch.equal(env.world.push[:, 0], torch.full((4,), 0.5))
    assert torch.equal(env.world.sim.read("qvel")[:, 0], torch.full((4,), 0.5))
    seen_push = seen(env, env.step(torch.zeros(4, 12)), "critic", "push")
    assert torch.equal(seen_push[:, 0], torch.full((4,), 0.5))


def test_events_of_worlds_that_did_not_end_stay_as_they_were():
    env = env_with(8, friction={"mode": "reset", "params": {"range": [0.3, 1.2]}}, motor_offset={"mode": "reset"})
    friction, offset = env.world.sim.read_model("geom_friction").clone(), env.world.joint_offset.clone()
    mask = torch.arange(8) < 3
    env._reset_worlds(mask)
    now, moved = env.world.sim.read_model("geom_friction"), env.world.joint_offset
    assert torch.equal(now[~mask], friction[~mask])
    assert torch.equal(moved[~mask], offset[~mask])
    assert not torch.equal(now[mask], friction[mask])
    assert (moved[mask] != offset[mask]).any()


def test_the_critic_is_told_the_mass_that_the_simulation_has():
    env = task("legged_pm01", num_envs=6)
    env.reset(2)
    step = env.step(torch.zeros(6, 12))
    base = env.world.layout.base
    added = env.world.sim.read_model("body_mass")[:, base] - model_default(env, "body_mass")[base]
    torch.testing.assert_close(seen(env, step, "critic", "base_mass")[:, 0], 0.1 * added, atol=1e-5, rtol=0.0)
    assert float(added.std()) > 0.1
