import math

import numpy as np
import pytest
import torch

from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.buffers.storage.chances import Priority
from rl_lab.buffers.storage.sum_tree import SumTree
from rl_lab.core import Box, CheckpointError, ConfigError, Discrete, EnvSpec, LabError, tree_leaves
from tests.buffers.streams import Source, pieces
from tests.buffers.test_replay import check_rows, strip_keys

torch.set_num_threads(1)
CPU = torch.device("cpu")
CHI_SQUARE_99 = {9: 21.67, 19: 36.19}  # 99 % quantiles by degrees of freedom, from a table


def levels(tree):
    return [level.clone() for level in tree._levels]


@pytest.mark.parametrize("num_leaves", [1, 127, 128, 129, 20_000])
def test_the_tree_is_a_function_of_its_leaves(num_leaves):
    generator = torch.Generator().manual_seed(num_leaves)
    tree, rebuilt = SumTree(num_leaves, CPU), SumTree(num_leaves, CPU)
    expected = torch.zeros(num_leaves, dtype=torch.float64)
    for _ in range(20):
        index = torch.randint(num_leaves, (17,), generator=generator)
        values = torch.rand(17, dtype=torch.float64, generator=generator).exp()
        tree.put(index, values)
        for leaf in set(index.tolist()):
            expected[leaf] = values[index == leaf].max()
        begin, end = sorted(torch.randint(num_leaves + 1, (2,), generator=generator).tolist())
        tree.leaves[begin:end] = expected[begin:end] = 0.125
        tree.update(begin, end)
    assert torch.equal(tree.leaves, expected)
    rebuilt.leaves.copy_(expected)
    rebuilt.update(0, num_leaves)
    assert all(torch.equal(a, b) for a, b in zip(levels(tree), levels(rebuilt), strict=True))
    assert math.isclose(float(tree.total), math.fsum(expected.tolist()), rel_tol=1e-12)


def test_find_walks_the_running_sum_and_never_meets_a_zero():
    weights = torch.tensor([0.0, 2.0, 0.0, 0.0, 1.0, 4.0, 0.0] + [0.0] * 200 + [1.0, 0.0], dtype=torch.float64)
    tree = SumTree(len(weights), CPU)
    tree.leaves.copy_(weights)
    tree.update(0, len(weights))
    targets = torch.tensor([0.0, 1.999, 2.0, 2.5, 3.0, 6.999, 7.0, 7.999, 8.0, 9.0], dtype=torch.float64)
    assert tree.find(targets).tolist() == [1, 1, 4, 4, 5, 5, 207, 207, 207, 207]
    tiny = SumTree(10_000, CPU)
    tiny.leaves[::7] = torch.rand(len(tiny.leaves[::7]), dtype=torch.float64).pow(20)  # over many magnitudes
    tiny.update(0, 10_000)
    total = float(tiny.total)
    targets = torch.linspace(0, total, 3000, dtype=torch.float64)
    found = tiny.find(targets)
    assert (tiny.leaves[found] > 0).all()
    ends = tiny.leaves.cumsum(0)
    assert (targets <= ends[found] + 1e-9 * total).all()
    assert (targets >= ends[found] - tiny.leaves[found] - 1e-9 * total).all()


def filled(kind, rows=10, batch_size=500, **priority):
    options = {"beta": 0.5, "alpha": 0.7} | priority
    buffer = PrioritizedReplayBuffer(rows, batch_size, priority=Priority(kind=kind, **options), min_size=1, seed=3)
    buffer.add(Source(0, 1, kind="vector").take(rows))
    return buffer


def set_priorities(buffer, priorities):
    """Give every row its priority, through what is public: batches and their write-back."""
    for _ in range(20):
        index = buffer.sample()["indices"]
        buffer.write_back({"priorities": priorities[index]})
        if (buffer._chances._tree.leaves != 1.0).sum() >= len(priorities) - 1:
            return


@pytest.mark.parametrize("kind", ["proportional", "rank"])
def test_rows_come_as_often_as_their_priority_says(kind):
    rows = 20
    buffer = filled(kind, rows)
    priorities = torch.rand(rows, generator=torch.Generator().manual_seed(1)) * 5 + 0.01
    set_priorities(buffer, priorities)
    if kind == "proportional":
        mass = (priorities.double() + 1e-6) ** 0.7
    else:
        ranks = [1 + sum(float(other) > float(p) for other in priorities) for p in priorities]
        mass = torch.tensor(ranks, dtype=torch.float64) ** -0.7
    chances = mass / mass.sum()
    counts, num_batches = torch.zeros(rows, dtype=torch.float64), 60
    for _ in range(num_batches):
        batch = buffer.sample()
        counts += torch.bincount(batch["indices"], minlength=rows)
        weights = (rows * chances[batch["indices"]]) ** -0.5
        torch.testing.assert_close(batch["weights"], (weights / weights.max()).float())
        buffer.write_back({"priorities": priorities[batch["indices"]]})
    expected = chances * num_batches * buffer.batch_size
    assert float(((counts - expected) ** 2 / expected).sum()) < CHI_SQUARE_99[rows - 1]
    assert (counts - expected).abs().max() < 1 * num_batches + 1  # stratified: a batch is off by less than one


def test_independent_draws_follow_the_same_chances():
    buffer = filled("proportional", 10, batch_size=1)  # one stratum: no batch helps the next
    buffer._chances.put(torch.arange(10), torch.arange(1.0, 11.0), torch.zeros(10, dtype=torch.bool))
    counts = torch.zeros(10, dtype=torch.float64)
    for _ in range(4000):
        counts[buffer.sample()["indices"]] += 1
    mass = (torch.arange(1.0, 11.0, dtype=torch.float64) + 1e-6) ** 0.7
    expected = mass / mass.sum() * 4000
    assert float(((counts - expected) ** 2 / expected).sum()) < CHI_SQUARE_99[9]


def test_new_rows_get_the_largest_priority():
    buffer = filled("proportional", 8, batch_size=4, alpha=1.0)
    source = Source(1, 1, kind="vector")
    index = buffer.sample()["indices"]
    buffer.write_back({"priorities": torch.tensor([0.5, 7.0, 2.0, 0.25])})
    buffer.add(source.take(2))
    leaves = buffer._chances._tree.leaves
    assert leaves[:2].tolist() == [7.0 + 1e-6] * 2
    kept = {i: p + 1e-6 for i, p in zip(index.tolist(), [0.5, 7.0, 2.0, 0.25], strict=True) if i >= 2}
    assert all(math.isclose(leaves[i].item(), p) for i, p in kept.items())


def test_rows_overwritten_meanwhile_keep_their_new_priority():
    buffer = filled("proportional", 8, batch_size=64, alpha=1.0)
    index = buffer.sample()["indices"]
    buffer.add(Source(1, 1, kind="vector").take(3))  # rows 0, 1 and 2 are other steps now
    buffer.write_back({"priorities": torch.full((64,), 5.0)})
    leaves = buffer._chances._tree.leaves
    assert leaves[:3].tolist() == [1.0] * 3
    assert set(leaves[index[index >= 3]].tolist()) == {5.0 + 1e-6}
    assert buffer._chances._largest.item() == 5.0 + 1e-6
    buffer.sample()
    buffer.add(Source(1, 1, kind="vector").take(9))
    buffer.write_back({"priorities": torch.full((64,), 50.0)})
    assert buffer._chances._largest.item() == 5.0 + 1e-6


def test_of_several_priorities_for_a_row_the_largest_counts():
    for kind in ("proportional", "rank"):
        buffer = filled(kind, 3, batch_size=9, alpha=1.0)
        index = buffer.sample()["indices"]
        values = torch.arange(9.0) + 0.5
        buffer.write_back({"priorities": values})
        buffer._chances.refreshed(3)
        expected = [values[index == row].max().item() for row in range(3)]
        leaves = buffer._chances._tree.leaves.tolist()
        if kind == "proportional":
            assert leaves == pytest.approx([p + 1e-6 for p in expected])
        else:
            assert leaves == [1 / (1 + sum(other > p for other in expected)) for p in expected]


def test_what_is_not_a_number_harms_no_other_row():
    buffer = filled("proportional", 4, batch_size=8)
    buffer.sample()
    buffer.write_back({"priorities": torch.tensor([math.nan, math.inf, -2.0, 0.0] * 2)})
    assert torch.isfinite(buffer.sample()["weights"]).all()


def test_ranks_are_found_in_the_last_sorted_ones_until_many_changed():
    buffer = filled("rank", 320, batch_size=10, alpha=1.0)
    chances = buffer._chances
    everyone, nobody = torch.arange(320), torch.zeros(320, dtype=torch.bool)
    chances.put(everyone, everyone + 1.0, nobody)
    buffer.sample()
    assert chances._tree.leaves[[319, 318, 0]].tolist() == [1.0, 1 / 2, 1 / 320]
    assert chances.num_changes == 0
    chances.put(torch.tensor([0]), torch.tensor([310.5]), nobody[:1])
    buffer.sample()
    assert chances._tree.leaves[[0, 310]].tolist() == [1 / 11, 1 / 10]  # 310 keeps its rank, 0 is placed behind it
    chances.put(everyone[:19], everyone[:19] + 0.5, nobody[:19])  # 20 of 320 changed
    buffer.sample()
    assert chances._tree.leaves[[0, 310, 1]].tolist() == [1 / 320, 1 / 10, 1 / 319]


@pytest.mark.parametrize("kind", ["proportional", "rank"])
def test_state_goes_on_exactly_and_cuts_change_nothing(kind):
    priority = Priority(kind=kind, beta=0.4, beta_end=1.0, beta_updates=6)
    whole, cut, again = (
        PrioritizedReplayBuffer(60, 16, priority=priority, n_step=2, gamma=0.5, min_size=1, num_envs=2, seed=seed)
        for seed in (1, 1, 77)
    )
    source, rng = Source(3, 2, kind="vector"), np.random.default_rng(0)
    for round_ in range(6):
        trajectory = source.take(17 if round_ else 90)
        whole.add(trajectory)
        for piece in pieces(rng, trajectory):
            cut.add(piece)
        if round_ == 3:
            again.set_state(whole.get_state())
        elif round_ > 3:
            again.add(trajectory)
        others = [cut, again] if round_ >= 3 else [cut]
        for _ in range(2):
            batch = whole.sample()
            priorities = batch["rewards"].abs() + 0.1
            whole.write_back({"priorities": priorities})
            for other in others:
                for (_, a), (_, b) in zip(tree_leaves(batch), tree_leaves(other.sample()), strict=True):
                    assert torch.equal(a, b)
                other.write_back({"priorities": priorities})
    states = [strip_keys(buffer.get_state()) for buffer in (whole, cut, again)]
    for other in states[1:]:
        for (path, a), (_, b) in zip(tree_leaves(states[0]), tree_leaves(other), strict=True):
            assert torch.equal(a, b), path
    assert whole.statistics() == {"size": 60.0, "beta": 1.0}


def test_beta_grows_with_the_batches():
    priority = Priority(beta=0.4, beta_end=1.0, beta_updates=3)
    assert [round(priority.beta_after(n), 9) for n in range(5)] == [0.4, 0.6, 0.8, 1.0, 1.0]
    assert Priority(beta=0.4).beta_after(10**9) == 0.4


@pytest.mark.parametrize("kind", ["proportional", "rank"])
def test_rows_with_pictures_and_steps_equal_a_plain_list(kind):
    source = Source(5, 2, stack=2, end_share=0.8)  # short episodes: pictures are overwritten before their rows
    buffer = PrioritizedReplayBuffer(
        120, 32, priority=Priority(kind=kind), n_step=2, gamma=0.5, min_size=1, num_envs=2, frame_stack=2
    )

    def transitions():
        batch = dict(buffer.sample())
        weights = batch.pop("weights")
        assert (weights <= 1.0).all()
        return batch

    class Plain:
        capacity = buffer.capacity
        sample = staticmethod(transitions)

    for _ in range(12):
        buffer.add(source.take(20))
        check_rows(Plain, source, n_step=2, num_samples=2)
        buffer.write_back({"priorities": torch.rand(32)})
        assert int((buffer._chances.refreshed(120).leaves > 0).sum()) == buffer.size
    assert buffer.size < 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ranked"}, "did you mean 'rank'"),
        ({"alpha": -1.0}, "alpha must be 0 or more"),
        ({"epsilon": 0.0}, "epsilon above 0"),
        ({"beta_end": 1.0}, "beta_end and priority.beta_updates"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        Priority(**options)


def test_wrong_use_is_named():
    buffer = filled("proportional", 8, batch_size=4)
    with pytest.raises(LabError, match="takes back priorities after a sample"):
        buffer.write_back({"priorities": torch.ones(4)})
    buffer.sample()
    with pytest.raises(LabError, match=r"got \['latents'\]"):
        buffer.write_back({"latents": torch.ones(4)})
    with pytest.raises(LabError, match=r"priorities \[3\] for a batch \[4\]"):
        buffer.write_back({"priorities": torch.ones(3)})
    with pytest.raises(CheckpointError, match="not of priority.kind=rank"):
        filled("rank", 8, batch_size=4).set_state(buffer.get_state())
    assert PrioritizedReplayBuffer(8, 4).footprint() == ()
    rows, chances = buffer.footprint()
    assert (rows.num_bytes, chances.num_bytes) == (buffer._transitions.num_bytes, buffer._chances.num_bytes)
    spec = EnvSpec("x", Box((3,)), Discrete(2))
    rows, chances = PrioritizedReplayBuffer(8, 4, spec=spec, storage="disk").footprint()
    assert (rows.is_on_disk, chances.is_on_disk, chances.capacity) == (True, False, 8)  # priorities stay in memory
