"""Reference motions: steps within clips and never across, in files that hold no code."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from rl_lab.buffers.motions import MotionBuffer, read_clips
from rl_lab.core import Box, CheckpointError, ConfigError, Discrete, EnvSpec, LabError

DICT = EnvSpec("x", {"amp": Box((2,)), "state": Box((5,))}, Discrete(2))


@pytest.fixture
def clips(tmp_path):
    """Return two clips, each of which counts by ones, and where they lie."""
    arrays = {"b": np.arange(5.0)[:, None] + [100.0, 200.0], "a": np.arange(3.0)[:, None] + [0.0, 50.0]}
    np.savez(tmp_path / "clips.npz", **arrays)
    return arrays, tmp_path / "clips.npz"


def test_steps_are_consecutive_frames_of_one_clip(clips):
    buffer = MotionBuffer(str(clips[1]), 200, spec=DICT)
    assert buffer.size == 4 + 2
    batch = buffer.sample()
    here, there = batch["observations"]["amp"], batch["next_observations"]["amp"]
    assert here.shape == (200, 2)
    assert torch.equal(there, here + 1.0)
    first = {float(value) for value in here[:, 0]}
    assert first == {0.0, 1.0, 100.0, 101.0, 102.0, 103.0}  # all of them, and never the last frame of a clip


def test_both_kinds_of_files_say_the_same(clips, tmp_path):
    arrays = {name: clip.astype(np.float32) for name, clip in clips[0].items()}
    save_file(arrays, tmp_path / "clips.safetensors")
    first, second = (MotionBuffer(str(path), 8, seed=3) for path in (clips[1], tmp_path / "clips.safetensors"))
    assert torch.equal(first.sample()["observations"], second.sample()["observations"])


def test_a_plain_observation_has_no_key(clips):
    buffer = MotionBuffer(str(clips[1]), 4, spec=EnvSpec("x", Box((2,)), Discrete(2)))
    assert buffer.sample()["observations"].shape == (4, 2)


def test_drawing_goes_on_where_it_was_saved(clips, tmp_path):
    buffer = MotionBuffer(str(clips[1]), 16, seed=1)
    buffer.sample()
    state, other = buffer.get_state(), MotionBuffer(str(clips[1]), 16, seed=2)
    other.set_state(state)
    for _ in range(2):
        assert torch.equal(buffer.sample()["observations"], other.sample()["observations"])
    np.savez(tmp_path / "others.npz", a=np.zeros((3, 2)))
    with pytest.raises(CheckpointError, match="not those of the checkpoint"):
        MotionBuffer(str(tmp_path / "others.npz"), 16).set_state(state)


def test_nothing_can_be_added(clips):
    buffer = MotionBuffer(str(clips[1]), 4)
    assert buffer.brings_data
    assert buffer.is_ready()
    assert buffer.footprint()[0].num_bytes == 2 * 6 * 2 * 4
    with pytest.raises(LabError, match="read-only"):
        buffer.add({})


def test_the_packaged_circle_goes_round():
    clip = read_clips("packaged/circle")["circle"]
    angle = 0.2 * np.arange(158)
    np.testing.assert_allclose(clip, 0.5 * np.stack([np.cos(angle), np.sin(angle)], -1), atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"a": np.zeros((1, 2))}, r"must hold clips \[T, D\], T of 2 or more"),
        ({"a": np.zeros((3, 2)), "b": np.zeros((3, 4))}, "one D"),
        ({"a": np.zeros(3)}, "must hold clips"),
        ({"a": np.full((3, 2), np.nan)}, "not finite"),
        ({"a": np.zeros((3, 4))}, "clips have 4 numbers, the observation 'amp' 2"),
        ({"a": np.array([[object()]])}, "neither a readable"),
    ],
)
def test_wrong_files_are_told_in_one_line(arrays, text, tmp_path):
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(ConfigError, match=text):
        MotionBuffer(str(tmp_path / "wrong.npz"), 4, spec=DICT)


def test_missing_files_and_names_are_told(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        read_clips(str(tmp_path / "none.npz"))
    with pytest.raises(ConfigError, match=r"unknown packaged motions 'cirle'; did you mean 'circle'\?"):
        read_clips("packaged/cirle")
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    for name in ("text.npz", "text.safetensors"):
        with pytest.raises(ConfigError, match="neither a readable"):
            read_clips(str(tmp_path / name))
    with pytest.raises(ConfigError, match=r"key: unknown observation 'amb'; did you mean 'amp'"):
        MotionBuffer("packaged/circle", 4, key="amb", spec=DICT)
