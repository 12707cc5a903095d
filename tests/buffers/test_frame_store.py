import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.storage.frame_store import FrameStore, num_frames
from rl_lab.core import CheckpointError, ConfigError, LabError
from tests.buffers.streams import Source, pieces
from tests.buffers.test_replay import check_rows

torch.set_num_threads(1)
CPU = torch.device("cpu")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    lanes=st.integers(1, 3),
    length=st.integers(1, 50),
    stack=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
    size=st.sampled_from([3, 4]),  # 9, 27 bytes are no whole words
    end_share=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    still_share=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
)
def test_pictures_equal_a_plain_list(seed, lanes, length, stack, channels, size, end_share, still_share):
    source = Source(
        seed,
        lanes,
        stack=stack,
        channels=channels,
        size=size,
        kind="picture",
        end_share=end_share,
        still_share=still_share,
    )
    buffer = ReplayBuffer(length * lanes, 16, gamma=0.5, min_size=1, num_envs=lanes, frame_stack=stack, seed=seed)
    for _ in range(4):
        for piece in pieces(source.rng, source.take(int(source.rng.integers(1, 30)))):
            buffer.add(piece)
            assert buffer.size > 0  # the newest row's pictures are always there
        check_rows(buffer, source, num_samples=1)
        source.skip(int(source.rng.integers(0, 2)))


def frames_written(buffer):
    (frames,) = buffer._transitions._frames.values()
    return frames.written


def test_a_step_brings_one_frame_and_an_episode_one_more():
    source = Source(1, 2, stack=4, kind="picture", end_share=0.05, still_share=0.0)
    source.padding = "repeat"
    source.frames = [source._first_stack() for _ in range(2)]
    buffer = ReplayBuffer(20_000, 8, num_envs=2, frame_stack=4)
    buffer.add(source.take(600))
    rows = [row for step in source.reference for row in step]
    begun = sum(bool(row["is_first"]) for row in rows)
    assert frames_written(buffer) == 1200 + begun
    still = Source(1, 2, stack=4, kind="picture", end_share=0.0, still_share=1.0)
    still.padding = "zeros"
    still.frames = [still._first_stack() for _ in range(2)]
    buffer = ReplayBuffer(20_000, 8, num_envs=2, frame_stack=4)
    buffer.add(still.take(600))
    assert frames_written(buffer) == 2 * 2  # a black one and the picture, of each copy


def test_segments_bring_a_whole_stack():
    source = Source(1, 1, stack=3, kind="picture", end_share=0.0, still_share=0.0)
    source.padding = "random"
    source.frames = [source._first_stack()]
    buffer = ReplayBuffer(1000, 8, frame_stack=3)
    buffer.add(source.take(5))
    assert frames_written(buffer) == 3 + 5
    source.skip(1)
    buffer.add(source.take(5))
    assert frames_written(buffer) == 2 * (3 + 5)


def test_the_slack_is_one_eighth_and_some_stacks():
    assert num_frames(1000, 4, 2) == 4000 + 500 + 16 * 2 * 4


@pytest.mark.parametrize(("end_every", "is_lost"), [(9, False), (6, True)])
def test_rows_are_lost_only_when_episodes_are_shorter_than_the_slack(end_every, is_lost):
    """Episodes of 9 steps bring 10 frames, 10/9 < 9/8; those of 6 bring 7, 7/6 > 9/8."""
    source = Source(0, 1, stack=1, kind="picture", end_share=0.0, still_share=0.0)
    trajectory = source.take(2000)
    ends = torch.arange(1, 2001)[:, None] % end_every == 0
    starts = torch.cat([torch.ones(1, 1, dtype=torch.bool), ends[:-1]])
    for t in starts.flatten().nonzero().flatten().tolist():
        trajectory["observations"][t] += 1  # a picture of its own
        source.reference[t][0]["observations"] = trajectory["observations"][t, 0]
    for t, row in enumerate(source.reference):
        row[0]["truncated"] = ends[t, 0]
    trajectory["truncated"], trajectory["is_first"] = ends, starts
    length = 640
    buffer = ReplayBuffer(length, 64, gamma=0.5)
    buffer.add(trajectory)
    check_rows(buffer, source)
    if is_lost:
        per_step = 7 / 6 + 5 / 6 / (length // 16)  # and what is stored anew where no episode begins
        assert abs(buffer.size - num_frames(length, 1, 1) / per_step) <= 2
    else:
        assert buffer.size == length


def test_a_picture_that_stands_still_is_stored_anew_now_and_then():
    """Two copies, one still, one moving: the still one's only frame would be overwritten."""
    length = 160
    buffer = ReplayBuffer(2 * length, 64, num_envs=2, gamma=0.5)
    source = Source(0, 2, stack=1, kind="picture", end_share=0.0, still_share=0.0)
    trajectory = source.take(1000)
    still = trajectory["observations"][0, 1].clone()
    for key in ("observations", "final_observations"):
        trajectory[key][:, 1] = still
        for step in source.reference:
            step[1][key] = still
    for piece in pieces(np.random.default_rng(0), trajectory):
        buffer.add(piece)
    assert buffer.size == 2 * length
    check_rows(buffer, source, num_samples=10)
    assert frames_written(buffer) == 1000 + 2 * 100  # every 160 // 16 steps of each copy


def test_odd_slices_are_read_too():
    store = FrameStore.empty((1, 3, 3), 1, 10, 1, CPU)
    pixels = torch.arange(60, dtype=torch.uint8)
    obs, final = pixels[3 : 3 + 18].view(2, 1, 1, 3, 3), pixels[12 : 12 + 18].view(2, 1, 1, 3, 3)
    encoded = store.encode(obs, final, 0)
    assert encoded.follows.flatten().tolist() == [False, True]
    assert store.written == 3
    found = store.decode(encoded.observations[:, 0], encoded.final_observations[:, 0])
    assert torch.equal(found[:, 0], obs[:, 0])
    assert torch.equal(found[:, 1], final[:, 0])


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match=r"frame_stack=2 does not divide the 3 channels of a picture \[3, 4, 4\]"):
        FrameStore.empty((3, 4, 4), 2, 10, 1, CPU)
    buffer = ReplayBuffer(20, 2, frame_stack=2)
    source = Source(0, 1, stack=2, kind="picture")
    trajectory = source.take(3)
    buffer.add(trajectory)
    with pytest.raises(LabError, match=r"pictures as torch.uint8 \[2, 4, 3\] instead of torch.uint8 \[2, 4, 4\]"):
        buffer.add(trajectory | {"observations": trajectory["observations"][..., :3]})
    with pytest.raises(CheckpointError, match="has frame_stack=2, this config asks for frame_stack=1"):
        ReplayBuffer(20, 2).set_state(buffer.get_state())
