"""Every reward term against a loop over worlds, joints and feet in float64, written from its formula."""

import inspect
import math

import numpy as np
import pytest
import torch

from rl_lab.robots.managers.terms import functions_of
from rl_lab.robots.mdp.rewards import MODULES
from tests.robots.mdp.states import BODIES, DT, facts, gait, random_state, worlds

torch.set_num_threads(1)
REWARDS = functions_of(MODULES)
DEFAULT = facts().default_pos.double().numpy()
LEGS, AMPLITUDES = [[0, 1, 2], [3, 4, 5]], [-0.26, 0.52, -0.26]


def rotation(q):
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def roll_pitch_yaw(q):
    m = rotation(q)
    return math.atan2(m[2, 1], m[2, 2]), math.asin(-m[2, 0]), math.atan2(m[1, 0], m[0, 0])


def phases(w):
    return [(w.phase + offset) % 1.0 for offset in (0.0, 0.5)]


def stands(w):
    return [phase < 0.6 for phase in phases(w)]


def swing(w):
    return [0.0 if phase < 0.6 else math.sin(math.pi * (phase - 0.6) / 0.4) for phase in phases(w)]


def reference(w):
    pose = list(DEFAULT)
    for leg, height in zip(LEGS, swing(w), strict=True):
        for joint, amplitude in zip(leg, AMPLITUDES, strict=True):
            pose[joint] += amplitude * height
    return pose


def length(values):
    return math.sqrt(sum(value * value for value in values))


def tracking_yaw(w):
    yaw = roll_pitch_yaw(w.base_quat)[2]
    ahead = math.cos(yaw) * w.world_vel[0] + math.sin(yaw) * w.world_vel[1]
    left = -math.sin(yaw) * w.world_vel[0] + math.cos(yaw) * w.world_vel[1]
    return math.exp(-((w.command[0] - ahead) ** 2 + (w.command[1] - left) ** 2) / 0.25)


def leaning(w):
    yaw = roll_pitch_yaw(w.base_quat)[2]
    heading = np.array([[math.cos(yaw), math.sin(yaw), 0], [-math.sin(yaw), math.cos(yaw), 0], [0, 0, 1]])
    axis = heading @ rotation(w.base_quat)[:, 2]
    return (axis[0] - 0.073) ** 2 + (axis[1] - 0.2) ** 2 + (axis[2] - 1) ** 2


def low_speed(w):
    if abs(w.command[0]) <= 0.1:
        return 0.0
    if np.sign(w.lin_vel[0]) != np.sign(w.command[0]):
        return -2.0
    if abs(w.lin_vel[0]) < 0.5 * abs(w.command[0]):
        return -1.0
    return 0.0 if abs(w.lin_vel[0]) > 1.2 * abs(w.command[0]) else 2.0


def hard(w):
    e, a = length(w.command[:2] - w.lin_vel[:2]), abs(w.command[2] - w.ang_vel[2])
    return 0.5 * (math.exp(-10 * e) + math.exp(-10 * a)) - 0.2 * (e + a)


def height_exp(w):
    feet = [w.foot_pos[i][2] for i in range(2) if stands(w)[i]]
    height = w.base_pos[2] - (sum(feet) / max(len(feet), 1) - 0.05)
    return math.exp(-100 * abs(height - 0.8))


def commanded(w):
    return 1.0 if length(w.command) > 0.1 else 0.0


def distance(a, b, nearest, farthest):
    d = length((a - b)[:2])
    near, far = min(max(d - nearest, -0.5), 0.0), min(max(d - farthest, 0.0), 0.5)
    return 0.5 * (math.exp(-100 * abs(near)) + math.exp(-100 * abs(far)))


def biped_air(w):
    down = [i for i in range(2) if w.contact[i]]
    if len(down) != 1:
        return 0.0
    since = [w.contact_time[i] if w.contact[i] else w.air_time[i] for i in range(2)]
    return min(*since, 0.4) * commanded(w)


def variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def feet(function):
    return lambda w: sum(function(w, i) for i in range(2))


def joints(function):
    return lambda w: sum(function(w, j) for j in range(6))


def ref_distance(w):
    return length([w.joint_pos[j] - reference(w)[j] for j in range(6)])


def knee_error(w):
    return [w.joint_pos[j] - DEFAULT[j] for j in (1, 4)]


def all_error(w):
    return [w.joint_pos[j] - DEFAULT[j] for j in range(6)]


KNEES = {"joints": torch.tensor([1, 4])}
SHANKS = {"bodies": torch.tensor([1, 2])}
NAIVE = {  # name -> (params, value of one world)
    "track_lin_vel": ({}, lambda w: math.exp(-sum((w.command[:2] - w.lin_vel[:2]) ** 2) / 0.25)),
    "track_lin_vel:vertical": (
        {"vertical": True, "sigma": 0.5},
        lambda w: math.exp(-(sum((w.command[:2] - w.lin_vel[:2]) ** 2) + w.lin_vel[2] ** 2) / 0.5),
    ),
    "track_ang_vel": ({}, lambda w: math.exp(-((w.command[2] - w.ang_vel[2]) ** 2) / 0.25)),
    "track_ang_vel:tilting": (
        {"tilting": True, "sigma": 0.5},
        lambda w: math.exp(-((w.command[2] - w.ang_vel[2]) ** 2 + w.ang_vel[0] ** 2 + w.ang_vel[1] ** 2) / 0.5),
    ),
    "track_lin_vel_yaw": ({}, tracking_yaw),
    "track_ang_vel_world": (
        {},
        lambda w: math.exp(-((w.command[2] - (rotation(w.base_quat) @ w.ang_vel)[2]) ** 2) / 0.25),
    ),
    "track_forward_vel": (
        {},
        lambda w: math.exp(-((w.command[0] - w.lin_vel[0]) ** 2 + w.lin_vel[1] ** 2 + w.lin_vel[2] ** 2) / 0.25),
    ),
    "track_vel_hard": ({}, hard),
    "low_speed": ({}, low_speed),
    "lin_vel_z": ({}, lambda w: w.lin_vel[2] ** 2),
    "ang_vel_xy": ({}, lambda w: w.ang_vel[0] ** 2 + w.ang_vel[1] ** 2),
    "orientation": ({}, lambda w: w.gravity[0] ** 2 + w.gravity[1] ** 2),
    "upright": ({}, lambda w: math.exp(-(w.gravity[0] ** 2 + w.gravity[1] ** 2) / 0.2)),
    "level": (
        {},
        lambda w: (
            0.5
            * (
                math.exp(-10 * sum(abs(a) for a in roll_pitch_yaw(w.base_quat)[:2]))
                + math.exp(-20 * length(w.gravity[:2]))
            )
        ),
    ),
    "base_height": ({}, lambda w: (w.base_pos[2] - w.ground - 0.8) ** 2),
    "base_height:target": ({"target": 0.3}, lambda w: (w.base_pos[2] - w.ground - 0.3) ** 2),
    "base_height_exp": ({"sole": 0.05}, height_exp),
    "base_acc": ({}, lambda w: math.exp(-3 * length(w.last_world_vel - w.world_vel))),
    "vel_mismatch": (
        {},
        lambda w: 0.5 * (math.exp(-10 * w.lin_vel[2] ** 2) + math.exp(-5 * length(w.ang_vel[:2]))),
    ),
    "alive": ({}, lambda w: 1.0 - w.terminated),
    "termination": ({}, lambda w: float(w.terminated)),
    "collision": (SHANKS, lambda w: sum(w.touch[i] > 0.1 for i in (1, 2))),
    "angular_momentum": (
        {},
        lambda w: w.angular_momentum[0] ** 2 + w.angular_momentum[1] ** 2 + w.angular_momentum[2] ** 2,
    ),
    "self_collision": ({}, lambda w: sum(force > 10.0 for force in w.self_force)),
    "leaning": ({"left": 0.2}, leaning),
    "torques": ({}, joints(lambda w, j: w.torques[j] ** 2)),
    "torque_norms": ({}, lambda w: length(w.torques) + sum(abs(t) for t in w.torques)),
    "energy": ({}, joints(lambda w, j: abs(w.joint_vel[j] * w.torques[j]))),
    "dof_vel": ({}, joints(lambda w, j: w.joint_vel[j] ** 2)),
    "dof_acc": ({}, joints(lambda w, j: ((w.last_joint_vel[j] - w.joint_vel[j]) / DT) ** 2)),
    "dof_pos_limits": ({}, joints(lambda w, j: max(-0.5 - w.joint_pos[j], 0) + max(w.joint_pos[j] - 0.6, 0))),
    "dof_vel_limits": ({"share": 0.9}, joints(lambda w, j: min(max(abs(w.joint_vel[j]) - 7.2, 0), 1))),
    "torque_limits": ({"share": 0.5}, joints(lambda w, j: max(abs(w.torques[j]) - 10.0, 0))),
    "joint_deviation": (KNEES, lambda w: sum(abs(e) for e in knee_error(w))),
    "joint_deviation_squared": (KNEES, lambda w: sum(e * e for e in knee_error(w))),
    "pose": (
        KNEES,
        lambda w: math.exp(-sum(e * e for e in knee_error(w)) / 2 / (0.1 if length(w.command) < 0.1 else 0.4) ** 2),
    ),
    "pose:each": (
        {**KNEES, "standing": torch.tensor([0.1, 0.3]), "walking": torch.tensor([0.5, 0.2])},
        lambda w: math.exp(
            -sum(
                (e / std) ** 2
                for e, std in zip(knee_error(w), (0.1, 0.3) if length(w.command) < 0.1 else (0.5, 0.2), strict=True)
            )
            / 2
        ),
    ),
    "pose_distance": (
        {},
        lambda w: length(all_error(w)) * (1.0 if length(w.command) > 0 or length(w.lin_vel[:2]) > 0.3 else 5.0),
    ),
    "stand_still": ({}, lambda w: sum(abs(e) for e in all_error(w)) * (length(w.command) < 0.1)),
    "default_joint_pos": (
        KNEES,
        lambda w: math.exp(-100 * min(max(length(knee_error(w)) - 0.1, 0), 50)) - 0.01 * length(all_error(w)),
    ),
    "action_rate": ({}, joints(lambda w, j: (w.actions[j] - w.last_actions[j]) ** 2)),
    "action_acceleration": (
        {},
        joints(lambda w, j: (w.actions[j] - 2 * w.last_actions[j] + w.older_actions[j]) ** 2),
    ),
    "action_smoothness": (
        {},
        joints(
            lambda w, j: (
                (w.actions[j] - w.last_actions[j]) ** 2
                + (w.actions[j] + w.older_actions[j] - 2 * w.last_actions[j]) ** 2
                + 0.05 * abs(w.actions[j])
            )
        ),
    ),
    "feet_air_time": (
        {},
        lambda w: sum((w.flight_time[i] - 0.5) * w.first_contact[i] for i in range(2)) * commanded(w),
    ),
    "feet_air_time_clipped": ({}, feet(lambda w, i: min(w.flight_time[i], 0.5) * w.first_contact[i])),
    "feet_air_time_above": (
        {},
        lambda w: sum(min(w.flight_time[i] - 0.2, 0.3) * w.first_contact[i] for i in range(2)) * commanded(w),
    ),
    "feet_air_time_biped": ({}, biped_air),
    "air_time_variance": (
        {},
        lambda w: variance([min(t, 0.5) for t in w.flight_time]) + variance([min(t, 0.5) for t in w.stance_time]),
    ),
    "feet_slip": ({}, feet(lambda w, i: (w.foot_vel[i][0] ** 2 + w.foot_vel[i][1] ** 2) * w.contact[i])),
    "feet_slip:root": ({"exponent": 0.5}, feet(lambda w, i: math.sqrt(length(w.foot_vel[i][:2])) * w.contact[i])),
    "feet_clearance": ({}, feet(lambda w, i: abs(w.foot_height[i] - 0.1) * length(w.foot_vel[i][:2]))),
    "feet_clearance:root": (
        {"exponent": 0.5},
        feet(lambda w, i: abs(w.foot_height[i] - 0.1) * math.sqrt(length(w.foot_vel[i][:2]))),
    ),
    "feet_clearance_exp": (
        {},
        lambda w: math.exp(
            -sum((w.foot_height[i] - 0.1) ** 2 * math.tanh(2 * length(w.foot_vel[i][:2])) for i in range(2)) / 0.05
        ),
    ),
    "feet_clearance_band": (
        {"width": 0.03},
        lambda w: sum(abs(w.foot_height[i] - 0.06) < 0.03 and not stands(w)[i] for i in range(2)),
    ),
    "swing_height": (
        {},
        lambda w: sum((w.peak_height[i] / 0.1 - 1) ** 2 * w.first_contact[i] for i in range(2)) * commanded(w),
    ),
    "swing_height_error": ({}, feet(lambda w, i: (w.foot_height[i] - 0.08) ** 2 * (not w.contact[i]))),
    "soft_landing": ({}, feet(lambda w, i: length(w.foot_force[i]) * w.first_contact[i])),
    "feet_contact_forces": ({}, feet(lambda w, i: min(max(length(w.foot_force[i]) - 500, 0), 350))),
    "feet_stumble": (
        {},
        lambda w: float(any(length(w.foot_force[i][:2]) > 5 * abs(w.foot_force[i][2]) for i in range(2))),
    ),
    "single_contact": ({}, lambda w: float(sum(w.contact) == 1)),
    "fly": ({}, lambda w: float(sum(w.contact) == 0)),
    "feet_distance": ({}, lambda w: distance(w.foot_pos[0], w.foot_pos[1], 0.15, 0.8)),
    "body_distance": ({"pair": torch.tensor([1, 2])}, lambda w: distance(w.body_pos[1], w.body_pos[2], 0.15, 0.4)),
    "gait_contact": ({}, lambda w: sum(bool(w.contact[i]) == stands(w)[i] for i in range(2)) * commanded(w)),
    "feet_contact_number": (
        {},
        lambda w: sum(1.0 if bool(w.contact[i]) == stands(w)[i] else -0.3 for i in range(2)) / 2,
    ),
    "feet_swing_clearance": (
        {"sigma": 0.05},
        lambda w: sum(math.exp(-(((w.foot_height[i] - 0.1 * swing(w)[i]) / 0.05) ** 2)) for i in range(2)) / 2,
    ),
    "feet_phase": (
        {},
        lambda w: math.exp(-sum((w.foot_height[i] - 0.1 * swing(w)[i]) ** 2 for i in range(2)) / 0.01),
    ),
    "dof_ref_pos_diff": ({}, lambda w: math.exp(-2 * ref_distance(w)) - 0.2 * min(ref_distance(w), 0.5)),
}


def test_every_term_of_the_library_has_a_loop():
    assert {name.split(":")[0] for name in NAIVE} == set(REWARDS)


@pytest.mark.parametrize("name", NAIVE)
def test_terms_are_their_formulas(name):
    params, naive = NAIVE[name]
    state = random_state(seed=7)
    value = REWARDS[name.split(":")[0]](state, **params)
    assert value.shape == (64,)
    assert value.dtype == torch.float32
    wanted = np.array([float(naive(world)) for world in worlds(state)])
    np.testing.assert_allclose(value.numpy(), wanted, rtol=2e-4, atol=1e-6)
    assert np.ptp(wanted) > 0, "the states do not tell this term from a constant"


def test_terms_only_read():
    state = random_state(seed=1)
    before = {key: value.clone() for key, value in vars(state).items() if isinstance(value, torch.Tensor)}
    for name, (params, _) in NAIVE.items():
        REWARDS[name.split(":")[0]](state, **params)
    for key, value in before.items():
        assert torch.equal(value, getattr(state, key)), key


def worst_and_best(name, worse, better, **params):
    """Return the term in a state that is worse and in one that is better."""
    return [float(REWARDS[name](random_state(count=1, **change), **params)) for change in (worse, better)]


def vector(*values):
    return torch.tensor([values])


def test_signs_of_what_the_original_had_wrong():
    """A reward grows towards the wish and a penalty away from it, so that the signs of weights can be read off YAML."""
    still = {"phase": torch.tensor([0.8]), "gait": gait(stance=0.6)}  # the left foot is in the middle of its swing
    low, high = ({**still, "foot_height": vector(height, 0.0)} for height in (0.0, 0.1))
    worse, better = worst_and_best("feet_swing_clearance", low, high)  # a positive weight on an error norm before
    assert worse < better == pytest.approx(1.0)
    moving = {"foot_vel": torch.ones(1, 2, 3)}
    penalty, none = worst_and_best("feet_clearance", {**moving, "foot_height": vector(0.0, 0.0)}, {
        **moving, "foot_height": vector(0.1, 0.1)})  # fmt: skip
    assert penalty > none == 0.0
    assert worst_and_best("feet_stumble", {"foot_force": torch.tensor([[[9.0, 0, 1], [0, 0, 1]]])}, {
        "foot_force": torch.tensor([[[1.0, 0, 1], [0, 0, 1]]])}) == [1.0, 0.0]  # fmt: skip


@pytest.mark.parametrize("name", ["track_lin_vel", "track_ang_vel", "track_forward_vel", "track_vel_hard"])
def test_tracking_pays_for_being_right_and_not_for_an_error_of_1(name):
    right = {"lin_vel": vector(1.0, 0.0, 0.0), "ang_vel": vector(0.0, 0.0, 1.0), "command": vector(1.0, 0.0, 1.0)}
    wrong = {**right, "command": vector(2.0, 0.0, 2.0)}
    worse, better = worst_and_best(name, wrong, right)
    assert better == pytest.approx(1.0)
    assert worse < 0.05  # the original's sigma paid 0.82 for it


def test_penalties_are_positive_and_zero_at_rest():
    rest = random_state(
        count=1,
        lin_vel=torch.zeros(1, 3), ang_vel=torch.zeros(1, 3), gravity=vector(0.0, 0.0, -1.0),
        joint_pos=facts().default_pos.unsqueeze(0), joint_vel=torch.zeros(1, 6), last_joint_vel=torch.zeros(1, 6),
        torques=torch.zeros(1, 6), actions=torch.zeros(1, 6), last_actions=torch.zeros(1, 6),
        older_actions=torch.zeros(1, 6), foot_vel=torch.zeros(1, 2, 3), foot_force=torch.zeros(1, 2, 3),
        touch=torch.zeros(1, 3), first_contact=torch.zeros(1, 2, dtype=torch.bool),
    )  # fmt: skip
    penalties = (
        *("lin_vel_z", "ang_vel_xy", "orientation", "torques", "energy", "dof_vel", "dof_acc", "dof_pos_limits"),
        *("action_rate", "action_smoothness", "feet_clearance", "feet_contact_forces", "soft_landing", "stand_still"),
    )
    for name in penalties:
        assert float(REWARDS[name](rest)) == pytest.approx(0.0, abs=1e-5), name
        assert (REWARDS[name](random_state()) >= 0.0).all(), name
        assert (REWARDS[name](random_state()) > 0.0).any(), name


def test_docstrings_tell_penalties_and_rewards_apart():
    assert all(inspect.getdoc(function) for function in REWARDS.values())
    assert BODIES[0] == "base"
