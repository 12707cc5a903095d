"""Demonstrations that grow: what is routed to them, what stays whole, what a dataset begins with."""

from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.buffers.datasets.format import DatasetError, Episode
from rl_lab.buffers.datasets.lab import LabWriter
from rl_lab.buffers.demonstrations import DemonstrationBuffer
from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.buffers.union import UnionBuffer
from rl_lab.core import Box, ConfigError, EnvSpec, LabError, tree_leaves, tree_map
from rl_lab.tracking.fingerprint import tree_hash
from tests.buffers.streams import Source, naive_transition

torch.set_num_threads(1)
SPEC = EnvSpec("made-up", Box((3,)), Box((2,), low=-4.0, high=4.0))


def demonstrations(kind=ReplayBuffer, capacity=400, batch_size=8, **options):
    given = {name: options.pop(name) for name in ("path", "episodes", "spec") if name in options}
    return DemonstrationBuffer(partial(kind, capacity, batch_size, min_size=1, **options), **given)


def is_shown(row):
    return bool(row["infos"]["is_intervention"] > 0)


def write_dataset(path, lengths=(3, 5)):
    episodes = []
    with LabWriter(path) as writer:
        for number, length in enumerate(lengths):
            rng = np.random.default_rng(number)
            obs = rng.normal(size=(length + 1, 3)).astype(np.float32)
            rewards = np.zeros(length, np.float32)
            rewards[-1] = 1.0
            infos = {"is_success": rewards.copy()}
            actions = rng.uniform(-1, 1, (length, 2)).astype(np.float32)
            episodes.append(Episode(obs[:-1], actions, rewards, True, False, obs[-1], infos))
            writer.save(episodes[-1])
    return episodes


@pytest.mark.parametrize("kind", ["picture", "vector"])
def test_every_shown_step_is_whole(kind):
    """Where a correction begins in the middle of an episode its first picture is its own, not the last one's."""
    source = Source(4, 3, kind=kind)
    buffer = demonstrations(gamma=0.9)
    for size in (7, 1, 12, 20):
        buffer.add(source.take(size))
    steps = [(step, lane) for step in range(len(source.reference)) for lane in range(3)]
    shown = {int(row["noise"]): (s, n) for s, n in steps if is_shown(row := source.reference[s][n])}
    assert buffer.size == len(shown) > 20
    seen = set()
    for _ in range(60):
        batch = buffer.sample()
        assert "infos" not in batch
        for number, noise in enumerate(batch["noise"].tolist()):
            step, lane = shown[noise]
            seen.add(noise)
            expected = naive_transition(source.reference, step, lane, n_step=1, gamma=0.9)
            for key in ("observations", "next_observations", "actions", "rewards", "discounts", "terminated"):
                torch.testing.assert_close(batch[key][number], expected[key], msg=key)
    assert len(seen) > 0.9 * len(shown)


def test_where_collecting_was_cut_changes_nothing():
    rows, states = Source(4, 3, kind="dict").take(20), []
    for cuts in ((20,), (3, 9, 20)):
        buffer, begin = demonstrations(seed=1), 0
        for end in cuts:
            buffer.add(tree_map(lambda leaf, part=slice(begin, end): leaf[part], rows))
            begin = end
        states.append([tree_hash(dict(buffer.sample())), buffer.statistics()])
    assert states[0] == states[1]


def test_a_teachers_steps_are_shown_and_what_lies_beside_is_not_kept():
    source = Source(1, 2, kind="vector")
    rows = source.take(10)
    rows["infos"]["is_intervention"].zero_()
    rows["is_teacher"] = torch.zeros(10, 2, dtype=torch.bool)
    rows["is_teacher"][3:5, 1] = True
    rows["teacher_actions"] = rows["actions"] + 1.0
    buffer = demonstrations()
    buffer.add(rows)
    assert buffer.statistics() == {"size": 2.0, "shown": 2.0}
    batch = buffer.sample()
    assert set(batch["noise"].tolist()) == set(rows["noise"][3:5, 1].tolist())
    assert not {"is_teacher", "teacher_actions", "infos"} & batch.keys()


def test_nothing_shown_changes_nothing():
    buffer, source = demonstrations(), Source(1, 2, kind="vector")
    before, rows = tree_hash(buffer.get_state()), source.take(5)
    rows["infos"]["is_intervention"].zero_()
    buffer.add(rows)
    assert tree_hash(buffer.get_state()) == before
    assert not buffer.is_ready()
    assert not buffer.brings_data


def test_corrections_join_what_a_dataset_begins_with(tmp_path):
    episodes = write_dataset(tmp_path / "set")
    buffer = demonstrations(path=str(tmp_path / "set"), spec=SPEC)
    assert (buffer.size, buffer.brings_data, buffer.statistics()["shown"]) == (8, True, 0.0)
    source = Source(2, 1, kind="vector")
    rows = source.take(12)
    del rows["noise"]  # what act adds
    rows["infos"]["is_intervention"][:] = 1.0
    buffer.add(rows)
    assert buffer.size == 20
    drawn = torch.cat([buffer.sample()["observations"] for _ in range(40)])
    wanted = torch.cat([*(torch.from_numpy(one.observations) for one in episodes), rows["observations"][:, 0]])
    assert {tuple(row) for row in drawn.tolist()} == {tuple(row) for row in wanted.tolist()}
    assert demonstrations(path=str(tmp_path / "set"), spec=SPEC, episodes=1).size == 3


def test_a_union_sends_every_step_to_one_part_and_shown_ones_to_both():
    parts = {"online": ReplayBuffer(200, 4, num_envs=2, seed=1), "demos": demonstrations(batch_size=4)}
    union = UnionBuffer(parts, {"online": 0.5, "demos": 0.5}, 8, add_to=["online", "demos"])
    source = Source(3, 2, kind="vector")
    union.add(source.take(30))
    shown = {int(row["noise"]) for rows in source.reference for row in rows if is_shown(row)}
    assert (parts["online"].size, parts["demos"].size) == (60, len(shown))
    batch = union.sample()
    assert set(batch["noise"][4:].tolist()) <= shown
    assert "infos" not in batch  # only one part has them
    assert {leaf.shape[0] for _, leaf in tree_leaves(batch)} == {8}
    assert union.needed_steps == 4


def test_infos_that_all_parts_have_are_joined():
    parts = {name: ReplayBuffer(200, 4, seed=1) for name in ("a", "b")}
    for name, part in parts.items():
        rows = Source(3, 1, kind="vector").take(9)
        rows["infos"] |= {name: rows["rewards"], "both": rows["rewards"]}
        part.add(rows)
    batch = UnionBuffer(parts, {"a": 0.5, "b": 0.5}, 8).sample()
    assert set(batch["infos"]) == {"is_intervention", "both"}
    assert torch.equal(batch["infos"]["both"], batch["rewards"])
    lone = {"a": ReplayBuffer(200, 4), "b": ReplayBuffer(200, 4)}
    for name, part in lone.items():
        rows = Source(3, 1, kind="vector").take(9)
        part.add(rows if name == "a" else {key: x for key, x in rows.items() if key != "noise"})
    with pytest.raises(LabError, match="a alone has noise"):
        UnionBuffer(lone, {"a": 0.5, "b": 0.5}, 8).sample()


def test_state_goes_on_exactly(tmp_path):
    options = {"storage": "disk", "seed": 5}
    buffer = demonstrations(PrioritizedReplayBuffer, **options)
    buffer.attach(tmp_path / "b")
    source = Source(2, 2, kind="vector")
    buffer.add(source.take(20))
    buffer.write_back({"priorities": torch.rand(len(buffer.sample()["rewards"]))})
    again = demonstrations(PrioritizedReplayBuffer, **options)
    again.attach(tmp_path / "c")
    again.set_state(buffer.get_state())
    later = source.take(20)
    for one in (buffer, again):
        one.add(later)
    assert again.statistics() == buffer.statistics()
    for _ in range(3):
        assert tree_hash(dict(again.sample())) == tree_hash(dict(buffer.sample()))
    assert tree_hash(again.get_state()) == tree_hash(buffer.get_state())
    assert buffer.footprint()[0].part == "into"


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda path: DemonstrationBuffer(ReplayBuffer(9, 2)), "into of a demonstration buffer needs _partial_: true"),
        (
            lambda path: DemonstrationBuffer(partial(SequenceBuffer, 90, 2, 3)),
            "into of a demonstration buffer must be a ReplayBuffer or a PrioritizedReplayBuffer",
        ),
        (lambda path: demonstrations(n_step=3), "into.n_step=3: steps of a demonstration buffer stand alone"),
        (
            lambda path: demonstrations(path=str(path), spec=SPEC, capacity=7),
            "into.capacity=7 is less than the 8 steps of",
        ),
        (lambda path: demonstrations(path=str(path), spec=SPEC, episodes=9), "has no episode 2"),
        (lambda path: demonstrations(path=str(path / "no"), spec=SPEC), "does not exist"),
    ],
)
def test_bad_input_is_one_line(make, line, tmp_path):
    write_dataset(tmp_path)
    with pytest.raises((ConfigError, DatasetError), match=line) as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)
