"""What goes with an exported policy computes the environment's own observations from what sensors read."""

import pytest
import torch

from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.observing import from_sensors
from rl_lab.deploy.parity import record
from tests.deploy.building import build
from tests.robots.tasks import task

torch.set_num_threads(1)
TERMS = ("base_ang_vel", "base_roll_pitch", "joint_pos", "joint_vel")
IDEAL = {"noise": False, "terms": {term: {"delay": 0} for term in TERMS}}


def clipped(actor):
    return {
        **actor,
        "terms": {**actor.get("terms", {}), "joint_vel": {"delay": 0, "clip": 0.5}, "command": {"history": 2}},
    }


def test_observations_are_made_of_what_the_terms_read():
    env = task("legged_pm01", num_envs=5, episode_s=0.15, observations={"actor": clipped(IDEAL)})
    observer, first = env.observer(), torch.ones(5, dtype=torch.bool)
    obs, carry, ended = env.reset(3), observer.initial_carry(5), 0
    for step in range(40):
        state = env._read()
        readings = {
            f"{name}.{term.name}": term(state)
            for name, group in env.observations.groups.items()
            for term in group.terms
        }
        assert readings.keys() == observer.space.keys()
        found, carry = observer(readings, carry, first)
        for name, wanted in obs.items():
            torch.testing.assert_close(found[name], wanted, atol=2e-6, rtol=1e-5)
        result = env.step(torch.randn(5, 12, generator=torch.Generator().manual_seed(step)))
        obs, first = result.observations, result.terminated | result.truncated
        ended += int(first.sum())
    assert ended >= 10
    assert float(obs["actor"].abs().max()) > 0.0


@pytest.mark.parametrize("name", ["legged_pm01", "legged_quadruped", "legged_rotunbot"])
def test_noise_and_delays_are_in_the_readings(name):
    """What must have been read gives the observation again, through resets."""
    env = task(name, num_envs=4, episode_s=0.2)
    observer, first = env.observer(), torch.ones(4, dtype=torch.bool)
    obs, carry = env.reset(1), observer.initial_carry(4)
    for _ in range(25):
        seen, carry = observer(observer.readings(obs), carry, first)
        pairs = [(seen, obs)] if isinstance(obs, torch.Tensor) else [(seen[key], obs[key]) for key in obs]
        for one, other in pairs:
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
        result = env.step(0.3 * torch.ones(4, *env.spec.action.shape))
        obs, first = result.observations, result.terminated | result.truncated


def test_a_policy_that_begins_at_the_sensors_acts_as_in_the_environment():
    workflow, spec, env = build("biped_pm01_flat_ppo", scale=0.05)
    observing, readings, sensors = from_sensors(workflow, spec, env)
    calls = record(PolicyFunction(observing, readings), sensors, 80)
    obs, first = env.reset(0), torch.ones(1, dtype=torch.bool)
    for index in range(40):  # the first half are steps of the environment
        wanted, _ = workflow.decide(obs, None, first)
        torch.testing.assert_close(torch.from_numpy(calls.outputs["action"][index]), wanted, atol=1e-5, rtol=1e-5)
        result = env.step(torch.from_numpy(calls.outputs["action"][index]))
        obs, first = result.observations, result.terminated | result.truncated
