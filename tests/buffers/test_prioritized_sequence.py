"""Sequences by priority: the same sequences as without, as often as priorities say; what is new, gone and resumed."""

import numpy as np
import pytest
import torch

from rl_lab.buffers.prioritized_sequence import PrioritizedSequenceBuffer
from rl_lab.buffers.storage.chances import Priority
from rl_lab.core import Box, Discrete, EnvSpec, LabError, tree_leaves
from tests.buffers.coded_stream import cut, stream
from tests.buffers.test_sequence import as_tuples, naive_rows, starts_by_hand

torch.set_num_threads(1)
SPEC = EnvSpec("stream", Box((2,)), Discrete(5), max_episode_steps=10)


def make(length=20, lanes=1, span=3, batch_size=200, seed=3, *, cross=True, **priority):
    options = {"beta": 0.5, "alpha": 0.7} | priority
    return PrioritizedSequenceBuffer(
        length * lanes,
        batch_size,
        span,
        priority=Priority(**options),
        cross_episodes=cross,
        num_envs=lanes,
        spec=SPEC,
        seed=seed,
    )


def leaves(buffer):
    return buffer._chances._tree.leaves


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cross", [True, False])
def test_exactly_the_sequences_that_there_are_can_be_drawn(seed, cross):
    rng = np.random.default_rng(seed)
    lanes, length, span = int(rng.integers(1, 4)), int(rng.integers(4, 20)), int(rng.integers(2, 5))
    buffer, trajectory = (
        make(length, lanes, min(span, length), cross=cross),
        stream(int(rng.integers(5, 60)), lanes, seed),
    )
    span = buffer.sequence_length
    for piece in cut(trajectory, rng.integers(1, 9, 6).tolist()):
        buffer.add(piece)
    expected = [s for lane in range(lanes) for s in starts_by_hand(naive_rows(trajectory, lane), length, span, cross)]
    assert int((leaves(buffer) > 0).sum()) == len(expected) == buffer.statistics()["sequences"]
    if expected:
        batch = buffer.sample()  # stratified: all have the same priority, and there are fewer of them than draws
        assert {tuple(as_tuples(batch, i)) for i in range(200)} == set(expected)
        assert torch.equal(batch["weights"], torch.ones(200))


@pytest.mark.parametrize("kind", ["proportional", "rank"])
def test_sequences_come_as_often_as_their_priority_says_and_weigh_less(kind):
    buffer = make(12, kind=kind)
    buffer.add(stream(40, 1, 1, end_share=0.0))
    priorities = torch.rand(12, generator=torch.Generator().manual_seed(1)) * 5 + 0.01
    can_start = leaves(buffer) > 0
    assert int(can_start.sum()) == 10
    for _ in range(6):
        start = buffer.sample()["indices"][:, 0]
        buffer.write_back({"priorities": priorities[start]})
    rows = can_start.nonzero().flatten().tolist()
    ranks = {row: 1 + sum(float(priorities[other]) > float(priorities[row]) for other in rows) for row in rows}
    mass = {
        row: (float(priorities[row]) + 1e-6) ** 0.7 if kind == "proportional" else ranks[row] ** -0.7 for row in rows
    }
    chances = {row: mass[row] / sum(mass.values()) for row in rows}
    counts = dict.fromkeys(rows, 0)
    for _ in range(50):
        batch = buffer.sample()
        start = batch["indices"][:, 0]
        weights = torch.tensor([(10 * chances[row]) ** -0.5 for row in start.tolist()])
        torch.testing.assert_close(batch["weights"], weights / weights.max(), rtol=1e-4, atol=1e-5)
        for row in start.tolist():
            counts[row] += 1
        buffer.write_back({"priorities": priorities[start]})
    assert all(abs(counts[row] - 50 * 200 * chances[row]) <= 51 for row in rows)  # a stratified batch is off by one


def test_new_starts_get_the_largest_priority_and_old_ones_that_are_overwritten_keep_theirs():
    buffer, trajectory = make(10, batch_size=64, alpha=1.0), stream(30, 1, 1, end_share=0.0)
    parts = list(cut(trajectory, [8, 3, 4]))
    buffer.add(parts[0])  # rows 0 to 7: starts 0 to 5
    assert leaves(buffer).tolist() == [1.0] * 6 + [0.0] * 4
    buffer.sample()
    buffer.write_back({"priorities": torch.full((64,), 4.0)})
    assert leaves(buffer)[:6].tolist() == pytest.approx([4.0] * 6)
    start = buffer.sample()["indices"][:, 0]
    assert set(start.tolist()) == set(range(6))
    buffer.add(parts[1])  # rows 8, 9 and 10, which takes the place of 0
    buffer.write_back({"priorities": torch.full((64,), 0.5)})
    assert leaves(buffer).tolist() == pytest.approx([0.0] + [0.5] * 5 + [4.0] * 3 + [0.0], rel=1e-5)
    buffer.sample()
    buffer.add(parts[2])  # four more: where 1 to 4 were
    assert leaves(buffer).tolist() == pytest.approx([4.0] * 3 + [0.0, 0.0, 0.5] + [4.0] * 4, rel=1e-5)


@pytest.mark.parametrize("kind", ["proportional", "rank"])
def test_state_goes_on_exactly_and_cuts_change_nothing(kind):
    whole, parts, again = (make(25, 2, 4, 16, seed, kind=kind, cross=False) for seed in (1, 1, 77))
    trajectory, rng = stream(200, 2, 4, end_share=0.1), np.random.default_rng(0)
    for index, piece in enumerate(cut(trajectory, [40, 17, 60, 30])):
        whole.add(piece)
        for small in cut(piece, rng.integers(1, 7, 10).tolist()):
            parts.add(small)
        if index == 2:
            again.set_state(whole.get_state())
        elif index > 2:
            again.add(piece)
        for _ in range(3):
            left = whole.sample()
            for other in [parts, again] if index >= 2 else [parts]:
                for (_, a), (_, b) in zip(tree_leaves(left), tree_leaves(other.sample()), strict=True):
                    assert torch.equal(a, b)
                other.write_back({"priorities": left["rewards"].mean(1)})
            whole.write_back({"priorities": left["rewards"].mean(1)})
    assert whole.statistics() == again.statistics()
    rows, priorities = whole.footprint()
    assert priorities.num_bytes > 0
    assert rows.capacity == priorities.capacity == 50


def test_only_priorities_of_the_last_batch_are_taken_back():
    buffer = make(batch_size=4)
    buffer.add(stream(20, 1, 0))
    with pytest.raises(LabError, match=r"takes back priorities after a sample, got \['priorities'\]"):
        buffer.write_back({"priorities": torch.ones(4)})
    buffer.sample()
    with pytest.raises(LabError, match=r"got \['latent'\]"):
        buffer.write_back({"latent": torch.ones(4)})
    with pytest.raises(LabError, match=r"given back priorities \[3\] for a batch \[4\]"):
        buffer.write_back({"priorities": torch.ones(3)})
