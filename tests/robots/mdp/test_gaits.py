import math

import mujoco
import numpy as np
import pytest
import torch

from rl_lab.robots.managers.commands import read_gait
from rl_lab.robots.mdp import gaits
from rl_lab.robots.mdp.reader import robot_facts
from rl_lab.robots.mdp.rotations import (
    euler_xyz,
    projected_gravity,
    quat_of_euler,
    quat_of_yaw,
    rotate,
    rotate_inverse,
    wrap,
    yaw_of,
)
from rl_lab.robots.models.bipeds import pm01, sa01
from rl_lab.robots.models.layout import layout_of
from rl_lab.robots.models.scene import compile_scene
from tests.robots.mdp.states import gait, random_state

torch.set_num_threads(1)
PHASES = torch.linspace(0.0, 0.999, 401)


def at_phases(**changes):
    return random_state(count=len(PHASES), phase=PHASES, **changes)


def test_left_and_right_follow_the_same_curve_half_a_cycle_apart():
    for curve in (gaits.swing_curve, gaits.stance_curve):
        state, later = at_phases(), at_phases()
        later.phase = torch.remainder(PHASES + 0.5, 1.0)
        left, right = curve(state)[:, 0], curve(later)[:, 1]
        torch.testing.assert_close(left, right, atol=2e-5, rtol=0.0)
        assert float(left.max()) == pytest.approx(1.0, abs=1e-3)  # the original's left foot never swung


def test_a_foot_swings_exactly_while_it_does_not_stand():
    state = at_phases()
    stands, swing, stance = gaits.should_stand(state), gaits.swing_curve(state), gaits.stance_curve(state)
    assert torch.equal(swing > 1e-6, ~stands & (swing > 1e-6))
    assert (stance[~stands] == 0.0).all()
    assert float((~stands).float().mean()) == pytest.approx(0.4, abs=0.01)
    assert (swing >= 0.0).all()
    assert (stance >= 0.0).all()


def test_the_legs_of_the_reference_mirror_each_other():
    state, later = at_phases(), at_phases()
    later.phase = torch.remainder(PHASES + 0.5, 1.0)
    left = gaits.reference_pose(state)[:, :3] - state.facts.default_pos[:3]
    right = gaits.reference_pose(later)[:, 3:] - state.facts.default_pos[3:]
    torch.testing.assert_close(left, right, atol=2e-5, rtol=0.0)
    peak = left.abs().amax(0)
    torch.testing.assert_close(peak, torch.tensor([0.26, 0.52, 0.26]), atol=1e-3, rtol=0.0)
    assert float(left[:, 1].min()) >= 0.0  # knees only bend


@pytest.mark.parametrize("make", [pm01, sa01])
def test_the_reference_moves_pitch_knee_and_ankle_of_every_robot_and_nothing_else(make):
    """PM01's hips are ordered pitch, roll, yaw and SA01's roll, yaw, pitch: columns would swing the wrong joint."""
    robot = make()
    model = compile_scene(robot)
    facts = robot_facts(model, robot, layout_of(model, robot), 0.02, torch.device("cpu"))
    legs = [[f"{side}_{joint}" for joint in ("hip_pitch", "knee", "ankle_pitch")] for side in ("left", "right")]
    state = at_phases(facts=facts, gait=read_gait({"legs": legs}, facts))
    state.joint_pos = torch.zeros(len(PHASES), 12)
    moved = (gaits.reference_pose(state) - facts.default_pos).abs().amax(0) > 0.01
    found = {name for name, moves in zip(robot.joint_names, moved, strict=True) if moves}
    assert found == {name for leg in legs for name in leg}
    assert all("pitch" in name or "knee" in name for name in found)


def test_rotations_are_those_of_mujoco():
    rng = np.random.default_rng(0)
    quats = rng.normal(size=(50, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    vectors, q = rng.normal(size=(50, 3)), torch.tensor(quats)
    for i in range(50):
        matrix, turned = np.zeros(9), np.zeros(3)
        mujoco.mju_quat2Mat(matrix, quats[i])
        mujoco.mju_rotVecQuat(turned, vectors[i], quats[i])
        matrix = matrix.reshape(3, 3)
        np.testing.assert_allclose(rotate(q[i], torch.tensor(vectors[i])), turned, atol=1e-12)
        np.testing.assert_allclose(rotate_inverse(q[i], torch.tensor(turned)), vectors[i], atol=1e-12)
        np.testing.assert_allclose(projected_gravity(q[i]), matrix.T @ [0, 0, -1], atol=1e-12)
        assert float(yaw_of(q[i])) == pytest.approx(math.atan2(matrix[1, 0], matrix[0, 0]))
        again = quat_of_euler(euler_xyz(q[i]))
        np.testing.assert_allclose(abs(float((again * q[i]).sum())), 1.0, atol=1e-9)
    yaw = torch.tensor([0.3, -2.0])
    torch.testing.assert_close(yaw_of(quat_of_yaw(yaw)), yaw)
    torch.testing.assert_close(wrap(torch.tensor([4.0, -4.0, 0.5])), torch.tensor([4.0, -4.0, 0.5]) - torch.tensor(
        [2 * math.pi, -2 * math.pi, 0.0]))  # fmt: skip
    assert gait().stance == 0.6
