"""Reference motions of a gait: what the joints do is computed back into feet by hand, and those walk as commanded."""

import runpy
import sys

import numpy as np
import pytest
import torch
import yaml

from rl_lab.buffers.motions import read_clips
from rl_lab.components.symmetry import reflection
from rl_lab.config.trees import CONFIGS
from rl_lab.core import ConfigError
from rl_lab.robots import reference_gaits
from rl_lab.robots.reference_gaits import default_commands, gait_clips
from rl_lab.tracking.fingerprint import fingerprint
from tests.robots.tasks import task
from tests.test_docs import ROOT
from tests.workflows.teaching import TINY, composed, train

torch.set_num_threads(1)
EXPERIMENT = yaml.safe_load((CONFIGS / "experiment" / "quadruped_flat_ppo_amp.yaml").read_text())
AMP = EXPERIMENT["environment"]["observations"]
LEGS = {"FL": (1, 1), "FR": (1, -1), "RL": (-1, 1), "RR": (-1, -1)}  # forward and left
DT, LIFT, SPEED_SCALE = 0.02, 0.08, 0.05


def foot(joints, front, left):
    """Return where a foot is in the base's frame, of hip, thigh and calf angles [T, 3]: the chain of a Go2's leg."""
    hip, thigh, knee = joints.astype(np.float64).T
    bend = thigh + knee
    x = -0.213 * np.sin(thigh) - 0.213 * np.sin(bend) - 0.002 * np.cos(bend)
    down = -0.213 * np.cos(thigh) - 0.213 * np.cos(bend) + 0.002 * np.sin(bend)
    side = 0.0955 * left
    y, z = side * np.cos(hip) - down * np.sin(hip), side * np.sin(hip) + down * np.cos(hip)
    return np.stack((0.1934 * front + x, 0.0465 * left + y, z), -1)


def feet(env, clip):
    """Return the feet [T, F, 3] of a clip, whose first columns are joints less their default."""
    pose = clip[:, :12] + np.array([joint.default for joint in env.robot.joints])
    names = list(env.robot.joint_names)
    columns = {leg: [names.index(f"{leg}_{part}_joint") for part in ("hip", "thigh", "calf")] for leg in LEGS}
    return np.stack([foot(pose[:, columns[leg]], *sides) for leg, sides in LEGS.items()], 1)


@pytest.fixture(scope="module")
def env():
    """Return the task with the group that is judged."""
    return task(num_envs=1, observations=AMP)


@pytest.mark.parametrize("command", [(1.0, 0.0, 0.0), (-0.5, 0.8, 0.0), (0.5, -0.3, 1.0)])
def test_feet_that_stand_stay_where_they_are_on_the_ground(env, command):
    clip = gait_clips(env, {"walk": command})["walk"]
    assert clip.shape == (26, 24)
    np.testing.assert_allclose(clip[0], clip[-1], atol=1e-5)  # a whole cycle
    places, (vx, vy, turn) = feet(env, clip), command
    phase = (np.arange(26)[:, None] * DT / 0.5 + [0.0, 0.5, 0.5, 0.0]) % 1.0  # trot
    middle = feet(env, gait_clips(env, {})["stand"])[0]
    seen = 0
    for t in range(1, 25):
        for leg in range(4):
            height = places[t, leg, 2] - middle[leg, 2]
            if phase[t - 1, leg] < phase[t, leg] < phase[t + 1, leg] < 0.5:
                moved = (places[t + 1, leg] - places[t - 1, leg]) / (2.0 * DT)
                x, y = middle[leg, :2]
                np.testing.assert_allclose(moved, [-(vx - turn * y), -(vy + turn * x), 0.0], atol=1e-4)
                assert abs(height) < 1e-5
                seen += 1
            elif phase[t, leg] > 0.5:
                assert height == pytest.approx(LIFT * np.sin(np.pi * (phase[t, leg] - 0.5) / 0.5), abs=1e-5)
    assert seen > 30


def test_velocities_are_those_of_the_positions(env):
    clip = gait_clips(env, {"walk": (0.5, 0.0, 0.5)})["walk"]
    moved = (clip[2:, :12] - clip[:-2, :12]) / (2.0 * DT)
    np.testing.assert_allclose(clip[1:-1, 12:] / SPEED_SCALE, moved, atol=1e-4)
    stand = gait_clips(env, {})["stand"]
    assert np.ptp(stand, 0).max() == 0.0
    assert np.abs(stand[:, 12:]).max() == 0.0


def test_the_mirror_image_of_a_clip_is_that_of_the_mirrored_command():
    even = task(num_envs=1, observations=AMP, commands={"gait": {"cycle_s": 0.48}})  # 24 frames
    clips = gait_clips(even, {"left": (0.5, 0.4, 0.7), "right": (0.5, -0.4, -0.7)})
    flip = reflection(even.spec.mirror.observation["amp"], even.spec.observation["amp"], "amp", even.device)
    image = flip(torch.from_numpy(clips["left"][:24])).numpy()
    np.testing.assert_allclose(image, np.roll(clips["right"][:24], -12, 0), atol=1e-4)  # half a cycle ahead
    assert np.abs(image - clips["left"][:24]).max() > 0.2


def test_the_packaged_motions_are_what_the_script_writes(tmp_path, monkeypatch):
    few = dict(list(default_commands().items())[::15])
    monkeypatch.setattr(reference_gaits, "default_commands", lambda: few)
    monkeypatch.setattr(sys, "argv", ["reference_gaits.py", str(tmp_path / "out.npz")])
    runpy.run_path(str(ROOT / "scripts" / "reference_gaits.py"), run_name="__main__")
    written, packaged = read_clips(str(tmp_path / "out.npz")), read_clips("packaged/quadruped_trot")
    assert set(written) == {*few, "stand"}
    assert set(packaged) == {*default_commands(), "stand"}
    for name in few:
        np.testing.assert_allclose(written[name], packaged[name], atol=1e-4)
    steps = {name: len(clip) - 1 for name, clip in packaged.items()}
    assert 0.08 < steps["stand"] / sum(steps.values()) < 0.12  # as many as commands that stand


def test_what_cannot_be_shown_is_told(env):
    with pytest.raises(
        ConfigError, match="reference gait 'fast': a foot is out of the reach of FL_hip_joint, FL_thigh"
    ):
        gait_clips(env, {"fast": (4.0, 0.0, 0.0)})
    with pytest.raises(ConfigError, match=r"environment\.observations: unknown group 'amb'; did you mean 'amp'\?"):
        gait_clips(env, {}, group="amb")
    long = task(num_envs=1, observations={"amp": {**AMP["amp"], "history": 2}})
    with pytest.raises(ConfigError, match=r"environment\.observations\.amp: clips have one frame per step"):
        gait_clips(long, {})


def test_a_stopped_run_with_symmetry_ends_in_the_same_bits(tmp_path):
    symmetry = ("+components@components.symmetry=symmetry", "components.symmetry.loss_coef=1.0")
    small = ("environment.simulation.num_threads=1", "training.eval_frequency=null", "algorithm.num_epochs=1")
    config = composed("quadruped_flat_ppo_amp", tmp_path, *TINY, *symmetry, *small)
    whole = train(config, tmp_path, "whole")
    parted = train(config, tmp_path, "parted", stop_at=4)
    train(config, tmp_path, "parted")
    assert fingerprint(parted) == fingerprint(whole)
    rows = (whole.path / "metrics.jsonl").read_text()
    assert all(name in rows for name in ("train/asymmetry", "train/style_reward", "train/judged_reference"))
