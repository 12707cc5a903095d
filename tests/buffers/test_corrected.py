"""Episodes in which somebody took over: what is drawn from them, against flags written out by hand."""

import pytest
import torch

from rl_lab.buffers.corrected import CorrectedBuffer
from rl_lab.core import ConfigError, tree_leaves
from tests.buffers.test_episode import episode_of


def corrected_episode(flags):
    """One episode whose actions are the numbers of their steps; 1 where an operator acted."""
    episode = episode_of([1.0] * len(flags))
    episode["actions"] = torch.arange(len(flags))[:, None]
    episode["infos"] = {"is_intervention": torch.tensor(flags, dtype=torch.float32)[:, None]}
    return episode


def test_what_had_to_be_corrected_is_no_example():
    flags = [0, 0, 1, 1, 0, 1, 0, 0]  # the policy's own steps 0, 1 and 4 led to a takeover; 6 and 7 to the end
    buffer = CorrectedBuffer(100, 256, chunk_length=3, seed=1)
    buffer.add(corrected_episode(flags))
    batch = buffer.sample()
    assert buffer.size == 5
    found = {int(step): row for step, row in zip(batch["step"], batch["is_pad"].tolist(), strict=True)}
    assert found == {
        2: [False, False, True],  # it ends with the correction: 4 is the policy's again, and was wrong
        3: [False, True, False],
        5: [False, False, False],
        6: [False, False, True],  # the episode is over
        7: [False, True, True],
    }
    steps = batch["step"]
    inside = ~batch["is_pad"]
    assert torch.equal(batch["actions"][inside], (steps[:, None] + torch.arange(3))[inside])
    assert torch.equal(batch["returns"], 8.0 - steps)  # what was reached counts as before


@pytest.mark.parametrize(("flags", "size"), [([0, 0, 0], 3), ([1, 1], 2), ([0, 0, 1], 1)])
def test_episodes_without_a_takeover_are_whole(flags, size):
    buffer = CorrectedBuffer(100, 64)
    buffer.add(corrected_episode(flags))
    assert buffer.size == size
    assert {int(step) for step in buffer.sample()["step"]} == set(range(len(flags) - size, len(flags)))


def test_corrected_steps_are_left_out_after_the_wrap_and_in_the_state():
    first, second = (
        CorrectedBuffer(12, 64, chunk_length=2, seed=seed) for seed in (1, 2)
    )  # two episodes of five rows fit
    for _ in range(5):
        first.add(corrected_episode([0, 1, 0, 0]))
    second.set_state(first.get_state())
    assert first.statistics()["episodes"] == 2
    assert first.size == second.size == 6
    for (_, ours), (_, theirs) in zip(tree_leaves(first.sample()), tree_leaves(second.sample()), strict=True):
        assert torch.equal(ours, theirs)
    assert {int(step) for step in second.sample()["step"]} == {1, 2, 3}


def test_episodes_that_nobody_watched_are_refused():
    with pytest.raises(ConfigError, match="CorrectedBuffer: steps have no infos.is_intervention; training.operator"):
        CorrectedBuffer(10, 4).add({**episode_of([1.0]), "infos": {}})
