import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.core import Box, CheckpointError, ConfigError, Discrete, EnvSpec, LabError, tree_leaves, tree_map
from tests.buffers.streams import Source, assert_equal, naive_transition, pieces

torch.set_num_threads(1)


def rows_of(batch):
    batch = dict(batch)
    for number, index in enumerate(batch.pop("indices").tolist()):
        yield index, tree_map(lambda leaf, n=number: leaf[n], batch)


def check_rows(buffer, source, *, n_step=1, gamma=0.5, num_samples=4):
    """Compare every row of some batches with the list of transitions, and where it lies with its index."""
    length, lanes = buffer.capacity // source.lanes, source.lanes
    written = len(source.reference)
    for _ in range(num_samples):
        for index, row in rows_of(buffer.sample()):
            place, lane = divmod(index, lanes)
            step = written - 1 - (written - 1 - place) % length
            assert step >= max(0, written - length)
            assert_equal(row, naive_transition(source.reference, step, lane, n_step=n_step, gamma=gamma))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    lanes=st.integers(1, 3),
    length=st.integers(3, 40),
    n_step=st.integers(1, 4),
    kind=st.sampled_from(["vector", "dict"]),
    stack=st.integers(1, 4),
)
def test_rows_equal_a_plain_list_over_random_streams(seed, lanes, length, n_step, kind, stack):
    source = Source(seed, lanes, stack=stack, kind=kind)
    n_step = min(n_step, length)
    buffer = ReplayBuffer(
        length * lanes, 24, n_step=n_step, gamma=0.5, min_size=1, num_envs=lanes, frame_stack=stack, seed=seed
    )
    for _ in range(4):
        for piece in pieces(source.rng, source.take(int(source.rng.integers(1, 30)))):
            buffer.add(piece)
        check_rows(buffer, source, n_step=n_step, num_samples=1)
        if source.rng.random() < 0.5:
            source.skip(int(source.rng.integers(1, 5)))


def test_every_stored_step_is_as_likely_as_any_other():
    for steps in (7, 25):  # not yet full, and wrapped
        source = Source(1, 2, kind="vector")
        buffer = ReplayBuffer(20, 500, min_size=1, num_envs=2, seed=3)
        buffer.add(source.take(steps))
        assert buffer.size == min(20, 2 * steps)
        counts = torch.zeros(20)
        for _ in range(40):
            counts += torch.bincount(buffer.sample()["indices"], minlength=20)
        expected = 40 * 500 / buffer.size
        assert (counts[buffer.size :] == 0).all()
        chi_square = float(((counts[: buffer.size] - expected) ** 2 / expected).sum())
        assert chi_square < 43.8  # 99.9 % of 19 degrees of freedom (13: 34.5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_cutting_adds_changes_nothing(n_step):
    whole, cut = (ReplayBuffer(30, 16, n_step=n_step, min_size=1, num_envs=2, frame_stack=2, seed=5) for _ in range(2))
    trajectory = Source(2, 2, stack=2).take(50)  # longer than the ring
    whole.add(trajectory)
    for piece in pieces(np.random.default_rng(0), trajectory):
        cut.add(piece)
    for (_, a), (_, b) in zip(tree_leaves(whole.sample()), tree_leaves(cut.sample()), strict=True):
        assert torch.equal(a, b)
    states = [strip_keys(buffer.get_state()) for buffer in (whole, cut)]
    assert_equal(*states)


def strip_keys(state):
    """Replace segments by their content, numbers by tensors."""
    if isinstance(state, dict):
        return {key: strip_keys(value) for key, value in state.items() if key != "layout"}
    if isinstance(state, list):
        return {str(i): strip_keys(value) for i, value in enumerate(state)}
    if isinstance(state, torch.Tensor):
        return state.clone()
    return state.tensor.clone() if type(state).__name__ == "Segment" else torch.tensor(hash(state))


@pytest.mark.parametrize("storage", ["host", "disk"])
@pytest.mark.parametrize(("steps", "n_step"), [(0, 1), (6, 1), (50, 1), (50, 3)])
def test_state_goes_on_exactly(storage, steps, n_step, tmp_path):
    options = {"n_step": n_step, "gamma": 0.5, "min_size": 1, "num_envs": 2, "frame_stack": 3, "storage": storage}
    source = Source(4, 2, stack=3)
    buffer, again = ReplayBuffer(30, 8, seed=1, **options), ReplayBuffer(30, 8, seed=99, **options)
    for name, part in (("a", buffer), ("b", again)):
        part.attach(tmp_path / name)
    if steps:
        buffer.add(source.take(steps))
        buffer.sample()
    again.set_state(buffer.get_state())
    more = source.take(11)
    for part in (buffer, again):
        part.add(more)
    for _ in range(3):
        for (_, a), (_, b) in zip(tree_leaves(buffer.sample()), tree_leaves(again.sample()), strict=True):
            assert torch.equal(a, b)
    assert_equal(strip_keys(again.get_state()), strip_keys(buffer.get_state()))
    check_rows(again, source, n_step=n_step)


def test_checkpoints_only_name_what_changed():
    source = Source(4, 1, kind="vector")
    buffer = ReplayBuffer(100_000, 8)
    buffer.add(tree_map(lambda leaf: leaf.repeat_interleave(1000, 0), source.take(90)))

    def keys():
        slots = buffer.get_state()["transitions"]["rows"]["slots"]
        return [slot.key for slot in slots.values()]

    before = keys()
    assert len(before) >= 2
    assert keys() == before
    buffer.add(source.take(1))
    after = keys()
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    again = ReplayBuffer(100_000, 8)
    again.set_state(buffer.get_state())
    slots = again.get_state()["transitions"]["rows"]["slots"]
    assert [slot.key for slot in slots.values()] == after


def test_intervention_segments_keep_their_own_pictures():
    """human_in_the_loop.md b.14: the first step of a later segment got the last picture of the one before."""
    source = Source(7, 1, stack=2, end_share=0.0, still_share=0.0)
    buffer = ReplayBuffer(64, 64, n_step=3, gamma=0.5, min_size=1, frame_stack=2)
    for inserted, skipped in ((4, 9), (1, 2), (5, 30), (3, 1)):
        buffer.add(source.take(inserted))
        source.skip(skipped)
    check_rows(buffer, source, n_step=3)


def test_cuts_within_one_add_are_seen_too():
    source = Source(7, 1, stack=2, end_share=0.0, still_share=0.0)
    parts = []
    for inserted, skipped in ((4, 9), (1, 2), (5, 30)):
        parts.append(source.take(inserted))
        source.skip(skipped)
    for kind in ("camera.rgb", "state"):  # either shows the cut
        buffer = ReplayBuffer(64, 64, n_step=3, gamma=0.5, min_size=1, frame_stack=2)
        joined = tree_map(lambda *leaves: torch.cat(leaves), *parts)
        names = ("observations", "final_observations")
        buffer.add(joined | {name: {kind: joined[name][kind]} for name in names})
        reference = [[row[0] | {name: {kind: row[0][name][kind]} for name in names}] for row in source.reference]
        for index, row in rows_of(buffer.sample()):
            assert_equal(row, naive_transition(reference, index, 0, n_step=3, gamma=0.5))


def test_an_end_ends_even_where_nothing_else_shows_it():
    """Observations that never change, and a stream that lost the first step of the next episode."""
    flags = torch.tensor([[False], [True], [False], [False]])
    never, same = flags & False, torch.ones(4, 1, 3)
    trajectory = {"observations": same, "final_observations": same, "actions": same, "is_first": never}
    trajectory |= {"rewards": torch.tensor([[1.0], [2.0], [4.0], [8.0]]), "terminated": flags, "truncated": never}
    expected = {0: (2.0, 0.0), 1: (2.0, 0.0), 2: (8.0, 0.25), 3: (8.0, 0.5)}  # 1 + 2/2, 2, 4 + 8/2, 8 by hand
    for cuts in ([4], [2, 2], [1, 1, 1, 1]):
        buffer = ReplayBuffer(9, 64, n_step=2, gamma=0.5, min_size=1)
        for piece in zip(*(value.split(cuts) for value in trajectory.values()), strict=True):
            buffer.add(dict(zip(trajectory, piece, strict=True)))
        for index, row in rows_of(buffer.sample()):
            assert (row["rewards"].item(), row["discounts"].item()) == expected[index]


def test_truncated_steps_bootstrap_from_their_own_final_observation():
    """b.15 and b.20: a time limit is no terminal state, and what follows it is not the next episode."""
    flags = torch.tensor([[False], [True], [False]])
    obs = torch.tensor([10.0, 11.0, 50.0]).view(3, 1, 1)
    final = torch.tensor([11.0, 12.0, 51.0]).view(3, 1, 1)
    trajectory = {
        "observations": obs,
        "actions": torch.zeros(3, 1, dtype=torch.int64),
        "rewards": torch.tensor([[1.0], [2.0], [4.0]]),
        "terminated": torch.zeros(3, 1, dtype=torch.bool),
        "truncated": flags,
        "final_observations": final,
        "is_first": torch.tensor([[True], [False], [True]]),
    }
    one, three = ReplayBuffer(3, 32, min_size=1, gamma=0.5), ReplayBuffer(3, 32, n_step=3, min_size=1, gamma=0.5)
    for buffer in (one, three):
        buffer.add(trajectory)
    for index, row in rows_of(one.sample()):
        assert row["next_observations"].item() == final[index].item()
        assert (row["discounts"].item(), row["terminated"].item()) == (0.5, False)
    expected = {0: (2.0, 12.0, 0.25, True), 1: (2.0, 12.0, 0.5, True), 2: (4.0, 51.0, 0.5, False)}  # by hand
    for index, row in rows_of(three.sample()):
        names = ("rewards", "next_observations", "discounts", "truncated")
        assert tuple(row[name].item() for name in names) == expected[index]
    one.add(tree_map(lambda leaf: leaf[:1], trajectory | {"terminated": ~flags, "truncated": flags & False}))
    ended = dict(rows_of(one.sample()))[0]
    assert (ended["discounts"].item(), ended["terminated"].item()) == (0.0, True)


def test_action_and_observation_stay_together_round_the_ring():
    """b.19: after a wrap every sample had the action of another observation; b.16: flags of `act` are kept."""
    buffer = ReplayBuffer(7, 64, min_size=1)
    for step in range(40):
        number = torch.full((1, 1), float(step))
        flag = torch.zeros(1, 1, dtype=torch.bool)
        buffer.add(
            {
                "observations": number,
                "actions": number + 0.5,
                "rewards": number + 1,
                "terminated": flag,
                "truncated": flag,
                "final_observations": number + 1,
                "is_first": flag,
                "is_intervention": number % 2 == 0,
            }
        )
        batch = buffer.sample()
        obs = batch["observations"]
        assert torch.equal(batch["actions"], obs + 0.5)
        assert torch.equal(batch["next_observations"], obs + 1)
        assert torch.equal(batch["rewards"], obs + 1)
        assert torch.equal(batch["is_intervention"], obs % 2 == 0)
        assert set(obs.tolist()) <= set(range(max(0, step - 6), step + 1))


def test_one_step_sample_is_a_draw_a_gather_and_views():
    buffer = ReplayBuffer(1000, 256)
    buffer.add(Source(0, 1, kind="vector").take(300))
    with Calls() as calls:
        buffer.sample()
    assert calls.names.count("aten.randint.generator") == calls.names.count("aten.index_select.default") == 1
    assert set(calls.names) <= {
        *("aten.randint.generator", "aten.index_select.default"),
        *("aten.view.dtype", "aten.as_strided.default", "aten.detach.default"),
    }


class Calls(TorchDispatchMode):
    """Keeps the names of the operations that were called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **kwargs or {})


def test_memory_is_what_was_announced():
    spec = EnvSpec("x", {"camera": Box((4, 8, 8), torch.uint8), "state": Box((3,))}, Discrete(5))
    buffer = ReplayBuffer(1600, 8, frame_stack=4, num_envs=4, spec=spec)
    (footprint,) = buffer.footprint()
    frames = 64 * (1600 + 200 + 16 * 4 * 4)
    row = 8 + 2 * (3 * 4 + 4 * 4) + 4 + 4 + 2  # action, observations, reward, discount, flags
    assert footprint.num_bytes == frames + 1600 * (-(-row // 8) * 8)
    assert (footprint.capacity, footprint.device.type, footprint.is_on_disk) == (1600, "cpu", False)
    flag = torch.zeros(5, 4, dtype=torch.bool)
    obs = {"camera": torch.zeros(5, 4, 4, 8, 8, dtype=torch.uint8), "state": torch.zeros(5, 4, 3)}
    actions, rewards = torch.zeros(5, 4, dtype=torch.int64), torch.zeros(5, 4)
    flags = dict.fromkeys(("terminated", "truncated", "is_first"), flag)
    buffer.add({"observations": obs, "actions": actions, "rewards": rewards, "final_observations": obs, **flags})
    assert buffer.footprint() == (footprint,)
    assert ReplayBuffer(10, 2).footprint() == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity of a buffer must be 1 or more, not 0"),
        ({"batch_size": 0}, "batch_size of a buffer must be 1 or more, not 0"),
        ({"n_step": 0}, "n_step of a buffer must be 1 or more, not 0"),
        ({"capacity": 3, "num_envs": 4}, "capacity=3 is less than one env step for each of num_envs=4"),
        ({"min_size": 101}, r"min_size=101 \(batch_size when it is null\) is more than capacity=100 holds"),
        ({"n_step": 60, "num_envs": 2}, "n_step=60 is more than the 50 steps"),
        ({"gamma": 1.5}, "gamma of a buffer must be between 0 and 1, not 1.5"),
        ({"storage": "tape"}, "unknown storage"),
        ({"frame_stack": 3, "spec": EnvSpec("x", Box((4, 8, 8), torch.uint8), Discrete(2))}, "frame_stack=3 does not"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(**{"capacity": 100, "batch_size": 10} | options)


def test_wrong_use_is_named_in_one_line():
    buffer = ReplayBuffer(40, 10, num_envs=2)
    source = Source(0, 2, kind="vector")
    trajectory = source.take(3)
    with pytest.raises(LabError, match="sampled with 0 env steps, it needs 10"):
        buffer.sample()
    with pytest.raises(LabError, match=r"makes \['discounts'\] itself"):
        buffer.add({**trajectory, "discounts": trajectory["rewards"]})
    buffer.add(trajectory)
    with pytest.raises(LabError, match="sampled with 6 env steps, it needs 10"):
        buffer.sample()
    with pytest.raises(LabError, match="num_envs=2 was given a trajectory of 3 environments"):
        buffer.add(Source(0, 3, kind="vector").take(1))
    with pytest.raises(LabError, match="'rewards' as torch.float64"):
        buffer.add({**trajectory, "rewards": trajectory["rewards"].double()})
    with pytest.raises(LabError, match="'extra'"):
        buffer.add({**trajectory, "extra": trajectory["rewards"]})
    with pytest.raises(LabError, match="was not given 'noise'"):
        buffer.add({key: value for key, value in trajectory.items() if key != "noise"})
    with pytest.raises(CheckpointError, match="20 x 2"):
        ReplayBuffer(60, 10, num_envs=2).set_state(buffer.get_state())
    assert (buffer.size, buffer.statistics()) == (6, {"size": 6.0})
