import pytest
import torch

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.buffers.storage.chances import Priority
from rl_lab.buffers.union import UnionBuffer
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, LabError, Witness, tree_leaves
from tests.buffers.streams import Source

torch.set_num_threads(1)


def rlpd(kind=ReplayBuffer, seed=0, **options):
    parts = {"online": kind(50, 6, seed=seed, **options), "demos": kind(80, 2, seed=seed + 1, **options)}
    union = UnionBuffer(parts, {"online": 0.75, "demos": 0.25}, 8, add_to="online")
    return union, parts


def test_batches_have_the_declared_shares_and_steps_go_to_one_part():
    union, parts = rlpd()
    demos = Source(1, 1, kind="vector")
    parts["demos"].add(demos.take(9))
    assert not union.is_ready()
    with pytest.raises(LabError, match="before all its parts were ready: online has 0 env steps"):
        union.sample()
    online = Source(2, 1, kind="vector")
    union.add(online.take(10))
    assert union.is_ready()
    assert (union.size, parts["online"].size, parts["demos"].size) == (19, 10, 9)
    noise = [{int(row[0]["noise"]) for row in source.reference} for source in (online, demos)]
    for _ in range(20):
        drawn = union.sample()["noise"].tolist()
        assert set(drawn[:6]) <= noise[0]
        assert set(drawn[6:]) <= noise[1]
        assert len(drawn) == 8
    assert union.statistics() == {"size": 19.0, "online/size": 10.0, "demos/size": 9.0}


def test_a_part_that_never_gets_enough_is_told_before_the_run_is_over():
    union, parts = rlpd()
    parts["demos"].add(Source(1, 1, kind="vector").take(1))
    union.add(Source(2, 1, kind="vector").take(3))
    with pytest.raises(LabError, match=r"^parts.demos of a union holds 1 env steps, .*none .*\(add_to: online\)$"):
        union.is_ready()
    both = UnionBuffer(parts, {"online": 0.75, "demos": 0.25}, 8, add_to=["online", "demos"])
    assert not both.is_ready()
    assert not UnionBuffer(parts, {"online": 0.75, "demos": 0.25}, 8).is_ready()  # nothing is collected for it


def test_write_back_reaches_the_rows_it_is_about():
    union, parts = rlpd(PrioritizedReplayBuffer, priority=Priority(alpha=1.0))
    for part in parts.values():
        part.add(Source(1, 1, kind="vector").take(20))
    batch = union.sample()
    union.write_back({"priorities": torch.cat([torch.full((6,), 3.0), torch.full((2,), 5.0)])})
    for name, rows, value in (("online", slice(0, 6), 3.0), ("demos", slice(6, 8), 5.0)):
        leaves = parts[name]._chances._tree.leaves
        index = batch["indices"][rows]
        assert set(leaves[index].tolist()) == {value + 1e-6}
        assert int((leaves == value + 1e-6).sum()) == len(set(index.tolist()))
    plain, plain_parts = rlpd()
    for part in plain_parts.values():
        part.add(Source(1, 1, kind="vector").take(20))
    plain.sample()
    with pytest.raises(TypeError, match="takes nothing back"):
        plain.write_back({"priorities": torch.ones(8)})


def test_a_look_joins_what_the_parts_show():
    parts = {name: SequenceBuffer(400, size, 3, seed=size) for name, size in (("online", 6), ("demos", 2))}
    union = UnionBuffer(parts, {"online": 0.75, "demos": 0.25}, 8, add_to="online")
    with pytest.raises(LabError, match="before all its parts were ready"):
        union.peek(0)
    for seed, part in enumerate(parts.values()):
        part.add(Source(seed, 1, kind="vector").take(30))
    expected = torch.cat([part.peek(3)["rewards"] for part in parts.values()])
    assert torch.equal(union.peek(3)["rewards"], expected)


def test_limits_are_those_of_all_parts_together():
    """What chunks are scaled by: of pictures none, of numbers the extremes over both parts."""
    union = UnionBuffer({"a": EpisodeBuffer(99, 2), "b": EpisodeBuffer(99, 2)}, {"a": 0.5, "b": 0.5}, 4, add_to="a")
    seen = torch.arange(12.0).view(6, 1, 2)
    ends = (torch.arange(6) == 5)[:, None]
    for part, numbers in zip(union._parts.values(), (seen, 3.0 - 2.0 * seen), strict=True):
        with pytest.raises(LabError, match="before all its parts were ready"):
            union.limits("observations")
        camera = torch.zeros(6, 1, 3, 4, 4, dtype=torch.uint8)
        obs = {"state": numbers, "camera": camera}
        part.add(
            {
                "observations": obs,
                "final_observations": obs,
                "actions": numbers[..., 0],
                "rewards": numbers[..., 0],
                "terminated": ends,
                "truncated": torch.zeros_like(ends),
                "is_first": ends.flip(0),
            }
        )
    low, high = union.limits("observations")
    assert low["camera"] is None
    assert (low["state"].tolist(), high["state"].tolist()) == ([-17.0, -19.0], [10.0, 11.0])  # 3 - 20, 3 - 22
    assert [float(limit) for limit in union.limits("actions")] == [-17.0, 10.0]


def test_state_goes_on_exactly(tmp_path):
    union, _ = rlpd(storage="disk")
    again, _ = rlpd(seed=50, storage="disk")
    for name, buffer in (("a", union), ("b", again)):
        buffer.attach(tmp_path / name)
        for part in buffer._parts.values():
            part.add(Source(1, 1, kind="vector").take(20))
    assert (tmp_path / "a" / "demos" / "rows.rows").exists()
    union.sample()
    again.set_state(union.get_state())
    for (_, a), (_, b) in zip(tree_leaves(union.sample()), tree_leaves(again.sample()), strict=True):
        assert torch.equal(a, b)


def test_memory_is_that_of_the_parts_each_in_its_place():
    spec = EnvSpec("x", Box((3,)), Discrete(2))
    mixed = {"online": ReplayBuffer(50, 6, spec=spec), "demos": ReplayBuffer(80, 2, spec=spec, storage="disk")}
    union = UnionBuffer(mixed, {"online": 0.75, "demos": 0.25}, 8)
    online, demos = (part.footprint()[0] for part in mixed.values())
    assert union.footprint() == (online._replace(part="parts.online"), demos._replace(part="parts.demos"))
    assert (online.is_on_disk, demos.is_on_disk) == (False, True)
    outer = UnionBuffer({"a": union}, {"a": 1.0}, 8)
    assert [taken.part for taken in outer.footprint()] == ["parts.a.parts.online", "parts.a.parts.demos"]
    assert rlpd()[0].footprint() == ()
    some = {"online": ReplayBuffer(50, 6, spec=spec), "demos": ReplayBuffer(80, 2)}
    assert [taken.part for taken in UnionBuffer(some, {"online": 0.75, "demos": 0.25}, 8).footprint()] == [
        "parts.online"
    ]


def test_parts_with_other_keys_are_named():
    union, parts = rlpd()
    source = Source(1, 1, kind="vector")
    trajectory = source.take(10)
    hinted = {**trajectory, "hint": trajectory["rewards"]}
    parts["demos"].add({key: value for key, value in hinted.items() if key != "noise"})
    parts["online"].add({key: value for key, value in trajectory.items() if key != "infos"})  # may be missing
    with pytest.raises(LabError, match="online alone has noise; demos alone has hint$"):
        union.sample()


@pytest.mark.parametrize(
    ("ratios", "batch_size", "add_to", "message"),
    [
        ({"online": 0.5, "demo": 0.5}, 8, None, r"ratios must name the parts of the union \['demos', 'online'\]"),
        ({"online": 0.5, "demos": 0.5}, 8, None, "parts.online draws 6 rows, which is not 0.5 of batch_size=8"),
        ({"online": 0.75, "demos": 0.25}, 9, None, "batch_size=9 is not the sum of what the parts draw"),
        ({"online": 0.75, "demos": 0.5}, 8, None, "above 0 and together 1"),
        ({"online": 1.0, "demos": 0.0}, 8, None, "above 0 and together 1"),
        ({"online": 0.75, "demos": 0.25}, 8, "onlin", "did you mean 'online'"),
    ],
)
def test_wrong_arguments_are_named(ratios, batch_size, add_to, message):
    _, parts = rlpd()
    with pytest.raises(ConfigError, match=message):
        UnionBuffer(parts, ratios, batch_size, add_to=add_to)


def test_a_union_without_a_part_to_add_to_says_so():
    _, parts = rlpd()
    union = UnionBuffer(parts, {"online": 0.75, "demos": 0.25}, 8)
    with pytest.raises(LabError, match="name one of its parts in add_to"):
        union.add(Source(1, 1, kind="vector").take(1))
    assert not union.brings_data


def test_a_part_that_does_not_tell_its_batch_size_is_checked_when_it_is_drawn():
    rollout = RolloutBuffer()
    union = UnionBuffer({"a": rollout}, {"a": 1.0}, 8, add_to="a")
    for steps in (8, 7):
        union.add(Source(1, 1, kind="vector").take(steps))
        if steps == 8:
            assert union.sample()["rewards"].shape == (8, 1)
    with pytest.raises(ConfigError, match="parts.a draws 7 rows, which is not 1.0 of batch_size=8"):
        union.sample()


def test_it_needs_what_the_part_needs_that_collects():
    parts = {"online": ReplayBuffer(50, 6, min_size=20), "demos": ReplayBuffer(50, 2)}
    ratios = {"online": 0.75, "demos": 0.25}
    assert UnionBuffer(parts, ratios, 8, add_to="online").needed_steps == 20
    assert UnionBuffer(parts, ratios, 8, add_to="demos").needed_steps == 2  # min_size is null: its batch_size
    assert UnionBuffer(parts, ratios, 8).needed_steps == 0
    assert not UnionBuffer(parts, ratios, 8).is_on_policy
    assert UnionBuffer({"a": RolloutBuffer()}, {"a": 1.0}, 8).is_on_policy


class Listening(ReplayBuffer):
    """Writes down what it hears beside the steps."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.heard = []

    def witness(self, seen):
        self.heard.append(seen)

    def end_episodes(self):
        self.heard.append("end")


@pytest.mark.parametrize(("add_to", "taking"), [("online", ["online"]), (["online", "demos"], ["online", "demos"])])
def test_the_parts_that_take_the_steps_hear_who_watched_and_that_the_robot_failed(add_to, taking):
    parts = {"online": Listening(50, 6), "demos": Listening(50, 2)}
    union, seen = UnionBuffer(parts, {"online": 0.75, "demos": 0.25}, 8, add_to=add_to), Witness((1.0,), "anna")
    union.witness(seen)
    union.end_episodes()
    assert {name: part.heard for name, part in parts.items() if part.heard} == {name: [seen, "end"] for name in taking}
