"""Sequences against a plain list of arrival rows per environment copy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import Box, CheckpointError, ConfigError, Discrete, EnvSpec, LabError, tree_leaves, tree_map
from tests.buffers.coded_stream import cut, stream
from tests.no_looks import NoLooks

SPEC = EnvSpec("stream", Box((2,)), Discrete(5), max_episode_steps=10)


def naive_rows(trajectory, lane):
    """Arrival rows of one copy as tuples (code, action, reward, is_first, is_last, is_terminal, latent)."""
    rows, led = [], (0, 0.0)
    steps = trajectory["rewards"].shape[0]
    for t in range(steps):
        get = {key: value[t, lane] for key, value in trajectory.items()}
        first = bool(get["is_first"])
        action, reward = (0, 0.0) if first else led
        rows.append((float(get["observations"][0]), action, reward, first, False, False, float(get["latent"])))
        led = (int(get["actions"]), float(get["rewards"]))
        if get["terminated"] or get["truncated"]:
            code = float(get["final_observations"][0])
            rows.append((code, *led, False, True, bool(get["terminated"]), 0.0))
    return rows


def as_tuples(batch, index):
    names = ("actions", "rewards", "is_first", "is_last", "is_terminal", "latent")
    columns = [batch["observations"][index, :, 0], *(batch[name][index] for name in names)]
    return [tuple(column[t].item() for column in columns) for t in range(len(columns[0]))]


def starts_by_hand(rows, length, span, cross):
    """Every start the ring still holds, as slices of the naive list."""
    oldest = max(0, len(rows) - length)
    found = []
    for start in range(oldest, len(rows) - span + 1):
        window = rows[start : start + span]
        if cross or not any(row[3] for row in window[1:]):
            found.append(tuple(window))
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lanes=st.integers(1, 3),
    steps=st.integers(1, 60),
    length=st.integers(4, 25),
    span=st.integers(2, 4),
    cross=st.booleans(),
    pieces=st.lists(st.integers(1, 9), max_size=8),
)
def test_every_sequence_is_one_of_the_naive_ones_and_all_of_them_come(seed, lanes, steps, length, span, cross, pieces):
    buffer = SequenceBuffer(length * lanes, 64, span, cross_episodes=cross, num_envs=lanes, seed=seed)
    trajectory = stream(steps, lanes, seed)
    for piece in cut(trajectory, pieces):
        buffer.add(piece)
    expected = [s for lane in range(lanes) for s in starts_by_hand(naive_rows(trajectory, lane), length, span, cross)]
    assert buffer.is_ready() == bool(expected)
    assert buffer.statistics()["sequences"] == len(expected)
    if not expected:
        return
    seen = set()
    for _ in range(12):
        batch = buffer.sample()
        assert batch["rewards"].shape == (64, span)
        seen |= {tuple(as_tuples(batch, i)) for i in range(64)}
    assert seen <= set(expected)
    assert len(seen) > 0.8 * len(set(expected))  # 768 draws of at most 75 starts


def test_starts_are_uniform():
    buffer = SequenceBuffer(3 * 20, 100, 4, num_envs=3, seed=3)
    buffer.add(stream(60, 3, 1, end_share=0.1))
    count = int(buffer.statistics()["sequences"])
    drawn = np.concatenate([buffer.sample()["indices"][:, 0].numpy() for _ in range(300)])
    observed = np.unique(drawn, return_counts=True)[1]
    assert len(observed) == count
    expected = len(drawn) / count
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < count + 4 * np.sqrt(2 * count)


@pytest.mark.parametrize("cross", [True, False])
def test_where_pieces_are_cut_changes_nothing(cross):
    one, many = (SequenceBuffer(40, 8, 3, cross_episodes=cross, num_envs=2, online=True, seed=5) for _ in range(2))
    trajectory = stream(50, 2, 9)
    one.add(trajectory)
    for piece in cut(trajectory, [1, 7, 2, 13, 1, 1]):
        many.add(piece)
    for _ in range(5):
        for (_, a), (_, b) in zip(tree_leaves(one.sample()), tree_leaves(many.sample()), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("cross", [True, False])
def test_state_goes_on_exactly(cross):
    def make(seed):
        return SequenceBuffer(
            40, 8, 3, cross_episodes=cross, online=True, refreshed=["latent"], num_envs=2, spec=SPEC, seed=seed
        )

    first, second = make(1), make(99)
    trajectory = stream(90, 2, 4)
    parts = list(cut(trajectory, [33, 17]))
    first.add(parts[0])
    batch = first.sample()
    first.write_back({"latent": batch["latent"] + 1})
    second.set_state(first.get_state())
    for buffer in (first, second):
        buffer.add(parts[1])
        buffer.add(parts[2])
    for _ in range(4):
        left, right = first.sample(), second.sample()
        for (_, a), (_, b) in zip(tree_leaves(left), tree_leaves(right), strict=True):
            assert torch.equal(a, b)
    assert first.statistics() == second.statistics()


def test_rows_on_disk_are_the_same_rows(tmp_path):
    in_memory, on_disk = (SequenceBuffer(80, 8, 5, num_envs=2, storage=where, seed=5) for where in ("host", "disk"))
    with pytest.raises(LabError, match="attach"):
        on_disk.add(stream(5, 2, 9))
    on_disk = SequenceBuffer(80, 8, 5, num_envs=2, storage="disk", seed=5)
    on_disk.attach(tmp_path / "buffers" / "replay")
    for buffer in (in_memory, on_disk):
        buffer.add(stream(50, 2, 9))
    for (_, a), (_, b) in zip(tree_leaves(in_memory.sample()), tree_leaves(on_disk.sample()), strict=True):
        assert torch.equal(a, b)
    assert (tmp_path / "buffers" / "replay" / "rows.rows").stat().st_size == on_disk._stores["rows"].num_bytes
    again = SequenceBuffer(80, 8, 5, num_envs=2, storage="disk", seed=77)
    again.attach(tmp_path / "again")
    again.set_state(on_disk.get_state())
    for (_, a), (_, b) in zip(tree_leaves(again.sample()), tree_leaves(on_disk.sample()), strict=True):
        assert torch.equal(a, b)


def test_only_refreshed_values_make_their_slots_new():
    buffer = SequenceBuffer(40, 4, 3, refreshed=["latent"], seed=1)
    buffer.add(stream(30, 1, 4))

    def keys():
        state = buffer.get_state()
        return [{s.key for s in state["stores"][name]["slots"].values()} for name in ("rows", "refreshed")]

    rows, refreshed = keys()
    batch = buffer.sample()
    assert keys() == [rows, refreshed]
    buffer.write_back({"latent": torch.full_like(batch["latent"], 7.0)})
    rows_after, refreshed_after = keys()
    assert rows_after == rows
    assert refreshed_after != refreshed
    again = buffer._stores["refreshed"].gather(batch["indices"])
    assert (again["latent"] == 7).all()


def test_of_several_values_for_a_row_the_last_counts():
    buffer = SequenceBuffer(40, 12, 4, refreshed=["latent"], seed=1)
    buffer.add(stream(9, 1, 4, end_share=0.0))
    index = buffer.sample()["indices"]
    places = torch.arange(48.0).view(12, 4)
    buffer.write_back({"latent": places})
    wanted = dict(zip(index.flatten().tolist(), places.flatten().tolist(), strict=True))
    assert len(wanted) < 48  # sequences overlap
    kept = buffer._stores["refreshed"].fields["latent"]
    assert {row: kept[row].item() for row in wanted} == wanted


def test_rows_that_were_overwritten_since_the_draw_are_left_alone():
    buffer = SequenceBuffer(8, 30, 2, refreshed=["latent"], seed=1)
    whole = stream(14, 1, 4, end_share=0.0)
    buffer.add(tree_map(lambda x: x[:8], whole))
    index = buffer.sample()["indices"]
    buffer.add(tree_map(lambda x: x[8:], whole))  # rows 0 to 5 of the ring are new
    before = buffer._stores["refreshed"].fields["latent"].clone()
    with NoLooks():
        buffer.write_back({"latent": torch.full((30, 2), -1.0)})
    after = buffer._stores["refreshed"].fields["latent"]
    assert torch.equal(after[:6], before[:6])
    assert {6, 7} <= set(index.flatten().tolist())
    assert (after[6:] == -1).all()


def test_a_key_that_goes_missing_is_refused_instead_of_leaving_old_values():
    buffer = SequenceBuffer(8, 2, 2)
    whole = stream(12, 1, 4)
    buffer.add(tree_map(lambda x: x[:8], whole))
    with pytest.raises(LabError, match="latent"):
        buffer.add({key: value[8:] for key, value in whole.items() if key != "latent"})


def test_the_queue_of_new_sequences_is_bounded():
    buffer = SequenceBuffer(8, 1, 2, online=True)
    for piece in cut(stream(400, 1, 3), [20] * 20):
        buffer.add(piece)
    assert len(buffer.get_state()["fresh"]) <= 8 // 2 + 1


def test_what_is_new_comes_first_and_once():
    buffer = SequenceBuffer(1000, 2, 5, online=True, seed=1)
    trajectory = stream(40, 1, 3, end_share=0.1)
    buffer.add(trajectory)
    rows = naive_rows(trajectory, 0)
    whole = len(rows) // 5
    fresh = [tuple(as_tuples(batch, i)) for batch in (buffer.sample() for _ in range(whole // 2)) for i in range(2)]
    assert fresh == [tuple(rows[k * 5 : k * 5 + 5]) for k in range(whole // 2 * 2)]
    assert len(buffer.get_state()["fresh"]) == whole % 2


def test_a_look_takes_nothing_away():
    looked, plain = (SequenceBuffer(1000, 4, 5, num_envs=2, online=True, refreshed=["latent"], seed=1) for _ in "ab")
    trajectory = stream(60, 2, 3, end_share=0.1)
    known = {window for lane in (0, 1) for window in starts_by_hand(naive_rows(trajectory, lane), 500, 5, True)}
    for buffer in (looked, plain):
        buffer.add(trajectory)
    for seed in range(12):  # the first batches are new rows, those after them random ones
        expected, batch, look = plain.sample(), looked.sample(), looked.peek(seed)
        assert all(torch.equal(leaf, expected[key]) for key, leaf in batch.items())
        assert torch.equal(look["indices"], looked.peek(seed)["indices"])
        assert {tuple(as_tuples(look, index)) for index in range(4)} <= known
    assert not torch.equal(look["indices"], batch["indices"])
    for buffer in (looked, plain):
        buffer.write_back({"latent": torch.arange(20.0).view(4, 5)})  # to the rows of the sample, not of the look
    leaves = [buffer._stores["refreshed"].fields["latent"] for buffer in (looked, plain)]
    assert torch.equal(*leaves)
    with pytest.raises(LabError, match="before it was ready"):
        SequenceBuffer(10, 1, 2).peek(0)


def test_a_gap_between_two_pieces_is_a_new_beginning():
    trajectory = stream(30, 1, 8, end_share=0.0)
    buffer = SequenceBuffer(100, 16, 6, cross_episodes=False, seed=1)
    buffer.add(tree_map(lambda x: x[:10], trajectory))
    buffer.add(tree_map(lambda x: x[15:], trajectory))  # five steps went elsewhere
    for _ in range(20):
        codes = buffer.sample()["observations"][..., 0]
        assert (codes.diff(dim=1) == 1).all()  # never from step 9 straight to step 15
    flags = buffer._stores["rows"].fields["is_first"][:25]
    assert flags.nonzero().flatten().tolist() == [0, 10]
    assert buffer._stores["rows"].fields["rewards"][10] == 0  # the reward that led there was never seen


def test_sequences_of_images_stay_bytes():
    trajectory = stream(20, 2, 3)
    pictures = torch.randint(0, 255, (20, 2, 3, 8, 8), dtype=torch.uint8)
    trajectory["observations"] = {"pixels": pictures, "vector": trajectory["observations"]}
    trajectory["final_observations"] = {"pixels": pictures.roll(-1, 0), "vector": trajectory["final_observations"]}
    buffer = SequenceBuffer(100, 4, 5, num_envs=2, seed=0)
    buffer.add(trajectory)
    batch = buffer.sample()
    assert batch["observations"]["pixels"].dtype == torch.uint8
    assert batch["observations"]["pixels"].shape == (4, 5, 3, 8, 8)


def test_bad_input_is_one_line():
    with pytest.raises(ConfigError, match="capacity and batch_size of a buffer must be 1 or more, got 0 and 1"):
        SequenceBuffer(0, 1, 2)
    with pytest.raises(ConfigError, match="sequence_length must be 2 rows or more, got 1"):
        SequenceBuffer(8, 1, 1)
    with pytest.raises(ConfigError, match="at least 40 are needed"):
        SequenceBuffer(20, 1, 10, num_envs=4)
    with pytest.raises(ConfigError, match="min_size=100 of a buffer is more than capacity=8"):
        SequenceBuffer(8, 2, 2, min_size=100)
    saved = SequenceBuffer(8, 2, 2).get_state()
    with pytest.raises(CheckpointError, match="sequence_length=2 and cross_episodes=True, this config asks for 3"):
        SequenceBuffer(8, 2, 3).set_state(saved)
    with pytest.raises(ConfigError, match="longer than any episode"):
        SequenceBuffer(100, 1, 12, cross_episodes=False, spec=SPEC)
    buffer = SequenceBuffer(100, 1, 5)
    assert not buffer.is_ready()
    with pytest.raises(LabError, match="0 sequences of 5 rows"):
        buffer.sample()
    buffer.add(stream(20, 1, 0))
    buffer.sample()
    with pytest.raises(LabError, match=r"takes back \[\]"):
        buffer.write_back({"priorities": torch.zeros(1)})
    with pytest.raises(LabError, match="refreshed names"):
        SequenceBuffer(100, 1, 5, refreshed=["carry"]).add(stream(20, 1, 0))


def test_episodes_that_stay_too_short_are_told_after_ten_batches():
    trajectory = stream(50, 2, 0, end_share=0.0)
    trajectory["truncated"][4::5] = True  # episodes of five steps, six rows
    trajectory["is_first"] = torch.roll(trajectory["truncated"], 1, 0)
    trajectory["is_first"][0] = True
    short, long = (SequenceBuffer(1000, 3, span, cross_episodes=False, num_envs=2) for span in (6, 7))
    assert (short.needed_steps, long.needed_steps) == (6, 8)  # if every episode had one step: two rows each
    for _ in range(2):
        for buffer in (short, long):
            buffer.add(trajectory)
        assert short.is_ready()
        if long.size < 10 * 3 * 7:
            assert not long.is_ready()
    assert long.size == 2 * 2 * 60
    with pytest.raises(
        LabError, match="sequence_length=7 of a buffer is longer than every episode it holds, after 240"
    ):
        long.is_ready()
    crossing = SequenceBuffer(10_000, 1, 60, num_envs=100)  # so many copies that a batch's rows are few for each
    crossing.add(stream(59, 100, 0, end_share=0.0))
    assert not crossing.is_ready()


def test_footprint_counts_one_observation_per_row():
    pixels = EnvSpec("p", Box((3, 64, 64), torch.uint8), Box((6,)))
    (footprint,) = SequenceBuffer(1000, 4, 5, spec=pixels).footprint()
    assert footprint.capacity == 1000
    assert footprint.num_bytes == 1000 * (3 * 64 * 64 + 6 * 4 + 4 + 4)  # three flags, padded to a whole word
