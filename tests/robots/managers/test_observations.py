"""Noise, clip, scale, delay and history of observation groups, against frames kept by the test."""

import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.robots.managers.observations import ObservationGroup, ObservationManager
from tests.robots.mdp.states import random_state

torch.set_num_threads(1)
EVERYWHERE = torch.ones(64, dtype=torch.bool)


def group(terms, **options):
    return ObservationGroup("actor", {"terms": terms, **options}, random_state(), torch.Generator().manual_seed(0))


def states(count):
    return [random_state(seed=seed) for seed in range(count)]


def test_values_are_clipped_and_then_scaled():
    made = group(
        {"joint_pos": {"clip": 0.2, "scale": 3.0}, "command": {"scale": [2.0, 2.0, 0.25], "clip": [-0.5, 9.0]}}
    )
    state = random_state(seed=3)
    out = made.restart(state, EVERYWHERE)
    joints = (state.joint_pos + state.joint_offset - state.facts.default_pos).clamp(-0.2, 0.2) * 3.0
    command = state.command.clamp(-0.5, 9.0) * torch.tensor([2.0, 2.0, 0.25])
    torch.testing.assert_close(out, torch.cat((joints, command), -1))


def test_noise_is_uniform_and_can_be_switched_off():
    state = random_state(seed=3, count=64)
    noisy = group({"joint_pos": {"noise": 0.5}, "command": {}})
    clean = group({"joint_pos": {"noise": 0.5}, "command": {}}, noise=False)
    error = torch.cat([noisy.advance(state) - clean.advance(state) for _ in range(50)])
    assert float(error[:, :6].abs().max()) == pytest.approx(0.5, abs=0.01)
    assert float(error[:, :6].var()) == pytest.approx(1.0 / 12.0, rel=0.03)  # of a uniform one of width 1
    assert (error[:, 6:] == 0.0).all()


def test_a_delay_reaches_the_policy():
    """The policy is given what the sensor said `delay` steps before; the original computed that and dropped it."""
    made = group({"joint_vel": {"delay": 2}, "base_ang_vel": {}})
    seen = states(9)
    made.restart(seen[0], EVERYWHERE)
    for step in range(1, 9):
        out = made.advance(seen[step])
        torch.testing.assert_close(out[:, :6], seen[max(step - 2, 0)].joint_vel, rtol=0, atol=0)
        torch.testing.assert_close(out[:, 6:], seen[step].ang_vel, rtol=0, atol=0)


def test_delays_are_drawn_per_world_and_may_be_fractions():
    made = group({"joint_vel": {"delay": [0.5, 2.5]}})
    seen = states(9)
    made.restart(seen[0], EVERYWHERE)
    lags = made.get_state()["lag"][:, 0]
    assert 0.5 <= float(lags.min()) < 0.7
    assert 2.3 < float(lags.max()) <= 2.5
    for step in range(1, 9):
        out = made.advance(seen[step])
    for world, lag in enumerate(lags.tolist()):
        newer, older = (seen[8 - int(lag) - back].joint_vel[world] for back in (0, 1))
        torch.testing.assert_close(out[world], newer + (lag - int(lag)) * (older - newer), atol=1e-4, rtol=1e-4)


def test_histories_are_oldest_first_and_begin_with_copies():
    made = group({"base_ang_vel": {"history": 3}, "command": {}, "gait_phase": {"history": 2}})
    assert made.dim == 3 * 3 + 3 + 2 * 2
    seen = states(5)
    first = made.restart(seen[0], EVERYWHERE)
    torch.testing.assert_close(first[:, :9], seen[0].ang_vel.repeat(1, 3))
    for step in range(1, 5):
        out = made.advance(seen[step])
        frames = [seen[max(step - back, 0)].ang_vel for back in (2, 1, 0)]
        torch.testing.assert_close(out[:, :9], torch.cat(frames, -1))
        torch.testing.assert_close(out[:, 9:12], seen[step].command)


def test_a_restart_forgets_the_past_of_its_worlds_only():
    made = group({"base_ang_vel": {"history": 2, "delay": 1}})
    seen, mask = states(4), torch.arange(64) % 2 == 0
    made.restart(seen[0], EVERYWHERE)
    before = [made.advance(state) for state in seen[1:3]][-1]
    after = made.restart(seen[3], mask)
    torch.testing.assert_close(after[~mask], before[~mask])
    torch.testing.assert_close(after[mask], seen[3].ang_vel.repeat(1, 2)[mask])
    out = made.advance(seen[0])
    torch.testing.assert_close(out[mask][:, 3:], seen[3].ang_vel[mask])  # one step late
    torch.testing.assert_close(out[~mask][:, 3:], seen[2].ang_vel[~mask])


def test_the_past_can_be_saved():
    terms = {"joint_vel": {"delay": [0, 3], "history": 4, "noise": 1.0}}
    seen = states(8)

    def play(made, steps):
        return [made.advance(state) for state in steps]

    whole, first = group(terms), group(terms)
    whole.restart(seen[0], EVERYWHERE)
    play(whole, seen[1:4])
    first.restart(seen[0], EVERYWHERE)
    play(first, seen[1:4])
    generator = torch.Generator().manual_seed(99)
    second = ObservationGroup("actor", {"terms": terms}, random_state(), generator)
    second.set_state(first.get_state())
    generator.set_state(first._generator.get_state())
    for wanted, found in zip(play(whole, seen[4:]), play(second, seen[4:]), strict=True):
        assert torch.equal(wanted, found)


def test_joints_are_chosen_by_name():
    state = random_state(seed=2)
    made = group({"joint_vel": {"params": {"joints": ["*_knee", "left_hip"]}}})
    torch.testing.assert_close(made.advance(state), state.joint_vel[:, [0, 1, 4]])


def test_one_group_is_a_vector_and_several_are_a_dict():
    generator = torch.Generator()
    one = ObservationManager({"actor": {"terms": {"command": {}}}}, random_state(), generator)
    two = ObservationManager(
        {"actor": {"terms": {"command": {}}}, "critic": {"terms": {"push": {}}}}, random_state(), generator
    )
    assert one.space.shape == (3,)
    assert {name: space.shape for name, space in two.space.items()} == {"actor": (3,), "critic": (6,)}
    assert one.advance(random_state()).shape == (64, 3)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"joint_poss": {}}, r"unknown function 'joint_poss'; did you mean 'joint_pos'"),
        ({"joint_pos": {"nois": 1}}, r"actor.terms.joint_pos: unknown key 'nois'; did you mean 'noise'"),
        ({"joint_pos": {"params": {"joints": "hip_*"}}}, r"params.joints: unknown name 'hip_\*'.*left_hip"),
        ({"joint_pos": {"params": {"joint": "*"}}}, r"unknown key 'joint'; did you mean 'joints'"),
        ({"height_scan": {"params": {"offset": "high"}}}, r"params.offset: must be a number, not 'high'"),
        ({"command": {"scale": [1.0, 2.0]}}, r"command.scale: has 2 numbers, but the term has 3 columns"),
        ({"command": {"delay": [2, 1]}}, r"command.delay: the lower end 2 is above the upper end 1"),
        ({"command": {"delay": -1}}, r"a delay must be 0 or more"),
        ({"command": {"history": 0}}, r"command.history: must be a whole number from 1, got 0"),
        ({"mass": {"function": "randomized", "params": {"event": "mass"}}}, r"unknown event 'mass' .choices: friction"),
        ({}, r"actor.terms: needs at least one term"),
    ],
)
def test_bad_terms_are_refused_in_one_line(terms, message):
    with pytest.raises(ConfigError, match=message) as error:
        group(terms)
    assert "\n" not in str(error.value)
