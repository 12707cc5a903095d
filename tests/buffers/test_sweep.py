"""Going through a sequence buffer: every row once, in batches of one size, and what is written back stays."""

import pytest
import torch

from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import Buffer, LabError


def trajectory(first, steps, ends=()):
    """Return steps of two environments whose observations count up; an episode ends after the steps named."""
    number = torch.arange(first, first + steps).float()
    obs = torch.stack([number, number + 1000.0], 1).unsqueeze(-1)  # [T, N, 1]
    ended = torch.zeros(steps, 2, dtype=torch.bool)
    ended[list(ends), 0] = True
    is_first = torch.cat([torch.zeros(1, 2, dtype=torch.bool), ended[:-1]])
    return {
        "observations": obs,
        "final_observations": obs + 1.0,
        "actions": torch.zeros(steps, 2, dtype=torch.int64),
        "rewards": torch.zeros(steps, 2),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "is_first": is_first,
        "latent": torch.zeros(steps, 2, 1),
    }


def make_buffer(capacity=200):
    return SequenceBuffer(capacity, 2, 3, num_envs=2, refreshed=("latent",))


@pytest.mark.parametrize("capacity", [200, 20])
def test_every_row_is_visited_and_takes_back_what_is_written(capacity):
    buffer, seen = make_buffer(capacity), []
    buffer.add(trajectory(0, 11, ends=(4,)))
    for batch in buffer.sweep():
        assert batch["observations"].shape == (6, 1, 1)  # 2 sequences of 3 rows
        seen += batch["observations"].flatten().tolist()
        buffer.write_back({"latent": batch["observations"] * 2.0})
    numbers = [*range(5), 5, *range(5, 11)]  # the end of the episode is a row of its own
    held = [*numbers[-(capacity // 2) :], *range(1000, 1011)[-(capacity // 2) :]]
    assert seen == [*held, *[held[-1]] * (-len(held) % 6)]
    for batch in (*buffer.sweep(), buffer.sample()):
        assert torch.equal(batch["latent"], batch["observations"] * 2.0)


def test_an_empty_buffer_has_no_batch_and_others_say_that_they_cannot():
    assert list(make_buffer().sweep()) == []
    with pytest.raises(LabError, match="RolloutBuffer can be sampled, but not gone through row by row"):
        RolloutBuffer().sweep()


def test_the_next_draws_do_not_notice():
    ours, other = make_buffer(), make_buffer()
    for buffer in (ours, other):
        buffer.add(trajectory(0, 11))
    list(ours.sweep())
    assert torch.equal(ours.sample()["indices"], other.sample()["indices"])


def test_single_rows_are_drawn_where_these_are_enough():
    """Inner rows are as likely as each other: as the number of sequences that they are in says."""
    buffer = make_buffer()
    buffer.add(trajectory(0, 11, ends=(4,)))
    batch = buffer.draw(6_000)
    assert batch["observations"].shape == (6_000, 1, 1)
    values, counts = batch["observations"][batch["observations"] >= 1000.0].unique(return_counts=True)
    assert values.tolist() == [*map(float, range(1000, 1011))]
    expected = torch.tensor([1, 2, *[3] * 7, 2, 1]) / (3 * (9 + 10)) * 6_000  # 9 starts, 10 in the other lane
    torch.testing.assert_close(counts.float(), expected, atol=60.0, rtol=0.0)
    buffer.write_back({"latent": batch["observations"] * 2.0})
    for batch in buffer.sweep():
        assert torch.equal(batch["latent"], batch["observations"] * 2.0)


def test_a_batch_is_drawn_where_nobody_asks_for_rows():
    ours, other = make_buffer(), make_buffer()
    for buffer in (ours, other):
        buffer.add(trajectory(0, 11))
    assert torch.equal(ours.draw()["indices"], other.sample()["indices"])
    assert RolloutBuffer().draw.__func__ is Buffer.draw
