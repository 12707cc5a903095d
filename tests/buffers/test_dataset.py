import math
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets.format import DatasetError, Episode, is_plain, plain_numbers
from rl_lab.buffers.datasets.lab import LabReader, LabWriter
from rl_lab.buffers.datasets.lerobot_writer import compact_lerobot
from rl_lab.buffers.datasets.open import open_dataset, open_writer, read_episodes
from rl_lab.buffers.datasets.state import apply_difference, difference, digest
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.config.allow_list import AllowList
from rl_lab.config.targets import Targets
from rl_lab.core import Box, CheckpointError, ConfigError, Discrete, EnvSpec, LabError, MultiDiscrete, Segment
from tests.buffers.dataset_parts import make_episode

DOCS = Path(__file__).parents[2] / "docs" / "datasets.md"


def counting(number, steps, *, truncated=False):
    """Return an episode that counts: observation 100 n + t leads to 100 n + t + 1."""
    states = (100 * number + np.arange(steps + 1, dtype=np.float32))[:, None]
    return Episode(
        observations=states[:-1],
        actions=states[:-1] + 0.5,
        rewards=np.arange(steps, dtype=np.float32),
        terminated=not truncated,
        truncated=truncated,
        final_observation=states[-1],
        infos={"is_intervention": np.arange(steps) % 2 == 1},
    )


EPISODES = [counting(0, 4), counting(1, 3, truncated=True), counting(2, 5)]


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "data", EPISODES)
    return tmp_path / "data"


def write(path, episodes, format="lab", **options):
    with open_writer(path, format, **options) as writer:
        for episode in episodes:
            writer.save(episode)


def rollout(path, **options):
    """Return everything a dataset brings, as one trajectory [T, 1, ...]."""
    return DatasetBuffer(str(path), RolloutBuffer, **options).sample()


def test_episodes_become_trajectories(path):
    found = rollout(path)
    starts, ends = [0, 4, 7], [3, 6, 11]
    states = torch.tensor([*range(4), *range(100, 103), *range(200, 205)])
    assert found["observations"].flatten().tolist() == states.tolist()
    assert found["final_observations"].flatten().tolist() == (states + 1).tolist()
    assert found["actions"].flatten().tolist() == (states + 0.5).tolist()
    assert found["is_first"].flatten().nonzero().flatten().tolist() == starts
    assert found["terminated"].flatten().nonzero().flatten().tolist() == [ends[0], ends[2]]
    assert found["truncated"].flatten().nonzero().flatten().tolist() == [ends[1]]
    assert found["infos"]["is_intervention"].flatten().tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0]
    assert found["rewards"].dtype == found["infos"]["is_intervention"].dtype == torch.float32
    assert found["rewards"].shape == (12, 1)
    assert rollout(path, episodes=[2, 0])["observations"].flatten().tolist() == [*range(200, 205), *range(4)]


def test_a_cut_last_step_without_its_successor_is_never_bootstrapped(tmp_path):
    """LeRobot keeps no final observation; repeating the last one would teach that nothing moves."""
    write(tmp_path / "data", [*EPISODES, counting(3, 1, truncated=True)], "lerobot", fps=10)
    found = rollout(tmp_path / "data")
    states = torch.tensor([*range(4), *range(100, 102), *range(200, 205)])
    assert found["observations"].flatten().tolist() == states.tolist()
    assert found["truncated"].flatten().nonzero().flatten().tolist() == [5]
    bootstrapped = ~found["terminated"].flatten()
    assert (found["final_observations"].flatten() == states + 1)[bootstrapped].all()
    kept = rollout(tmp_path / "data", keep_last_step=True)
    assert len(kept["rewards"]) == 13
    assert kept["truncated"].flatten().nonzero().flatten().tolist() == [6, 12]


def test_replay_shows_every_transition_of_the_dataset(path):
    into = partial(ReplayBuffer, batch_size=512, gamma=0.5, min_size=12, num_envs=8)  # of which it gets one lane
    buffer = DatasetBuffer(str(path), into, seed=3)
    assert buffer.is_ready()
    batch = buffer.sample()
    assert buffer.size == 12
    assert set(batch["observations"].flatten().tolist()) == {*range(4), *range(100, 103), *range(200, 205)}
    assert (batch["next_observations"] == batch["observations"] + 1).all()
    ends = torch.isin(batch["observations"].flatten(), torch.tensor([3.0, 204.0]))
    assert (batch["terminated"] == ends).all()
    assert (batch["discounts"] == 0.5 * ~ends).all()
    assert buffer.statistics()["episodes"] == 3


@pytest.mark.parametrize(
    "into",
    [
        partial(ReplayBuffer, batch_size=4, n_step=2),
        partial(SequenceBuffer, batch_size=3, sequence_length=4),
        partial(EpisodeBuffer, batch_size=4, chunk_length=3),
    ],
    ids=["replay", "sequence", "episode"],
)
def test_a_checkpoint_holds_the_sampler_and_not_the_data(path, into):
    buffer = DatasetBuffer(str(path), into, seed=5)
    fresh = buffer.get_state()
    assert fresh["change"] is None
    batches = [buffer.sample() for _ in range(3)]
    state = buffer.get_state()
    assert sum(leaf.numel() * leaf.element_size() for leaf in leaves(state)) < 10_000  # the generator's words
    assert not any(isinstance(leaf, Segment) for leaf in all_leaves(state))
    again = DatasetBuffer(str(path), into, seed=6)
    again.set_state(state)
    for _ in range(3):
        torch.testing.assert_close(again.sample(), buffer.sample(), rtol=0, atol=0)
    assert digest(again.get_state()["change"]) == digest(buffer.get_state()["change"])
    buffer.set_state(fresh)  # back to the start, in the same process
    for batch in batches:
        torch.testing.assert_close(buffer.sample(), batch, rtol=0, atol=0)


def test_rows_may_lie_in_files_of_the_run(path, tmp_path):
    """The run's directory is known only after construction, so nothing is loaded before."""
    into = partial(ReplayBuffer, batch_size=4, storage="disk")
    buffers = [DatasetBuffer(str(path), into, seed=seed) for seed in (1, 2)]
    for number, buffer in enumerate(buffers):
        buffer.attach(tmp_path / str(number))
    buffers[0].sample()
    buffers[1].set_state(buffers[0].get_state())
    torch.testing.assert_close(buffers[1].sample(), buffers[0].sample(), rtol=0, atol=0)
    assert list((tmp_path / "1").iterdir())


def leaves(tree):
    return [leaf for leaf in all_leaves(tree) if isinstance(leaf, torch.Tensor)]


def all_leaves(tree):
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in all_leaves(part)]
    return [leaf for part in tree for leaf in all_leaves(part)] if isinstance(tree, list) else [tree]


def test_what_updates_wrote_back_is_kept(path):
    """Latents are stored with the rows: the segments that hold them are in the state, the others are not."""
    old, new = Segment("b", torch.zeros(2)), Segment("c", torch.ones(2))
    state = {"rows": Segment("a", torch.ones(3)), "latents": {"0": old}, "rng": torch.arange(4)}
    base = digest(state)
    assert difference(base, state) is None
    changed = {**state, "latents": {"0": new}, "count": 1}
    assert difference(base, changed)["replace"] is changed  # other keys
    change = difference(base, {**state, "latents": {"0": new}, "rng": torch.arange(4)})
    assert change == {"inside": {"latents": {"inside": {"0": {"replace": new}}}}}
    assert apply_difference(state, change) == {**state, "latents": {"0": new}}
    assert apply_difference(state, None) is state


def test_another_dataset_is_refused_on_resume(path, tmp_path):
    into = partial(ReplayBuffer, batch_size=4)
    state = DatasetBuffer(str(path), into).get_state()
    moved = path.rename(tmp_path / "moved")
    DatasetBuffer(str(moved), into).set_state(state)
    with pytest.raises(CheckpointError, match="episodes of .* differs"):
        DatasetBuffer(str(moved), into, episodes=[0, 1]).set_state(state)
    with LabWriter(moved) as writer:
        writer.save(counting(3, 2))
    with pytest.raises(CheckpointError, match="episodes of .*moved differs: a run resumes only with the same data"):
        DatasetBuffer(str(moved), into).set_state(state)
    DatasetBuffer(str(moved), into, episodes=[0, 1, 2]).set_state(state)  # what else is there is not used


@pytest.mark.parametrize("format", ["lab", "lerobot"])
def test_other_numbers_of_the_same_shape_are_refused_on_resume(tmp_path, format):
    into, options = partial(ReplayBuffer, batch_size=4), {} if format == "lab" else {"fps": 10}
    write(tmp_path / "a", EPISODES, format, **options)
    state = DatasetBuffer(str(tmp_path / "a"), into).get_state()
    other = Episode(**{**vars(EPISODES[1]), "actions": EPISODES[1].actions + np.float32([[0], [1e-3], [0]])})
    write(tmp_path / "b", [EPISODES[0], other, EPISODES[2]], format, **options)
    if format == "lerobot":  # statistics and index are all the same
        shutil.copytree(tmp_path / "a/meta", tmp_path / "b/meta", dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match="sha256 of .*b differs: a run resumes only with the same data"):
        DatasetBuffer(str(tmp_path / "b"), into).set_state(state)


def test_joined_files_are_the_same_data(tmp_path):
    into = partial(ReplayBuffer, batch_size=4)
    write(tmp_path, EPISODES, "lerobot", fps=10, data_mb=0)
    before = DatasetBuffer(str(tmp_path), into)
    before.sample()
    state, batch = before.get_state(), before.sample()
    assert len(list(tmp_path.glob("data/*/*.parquet"))) == 3
    compact_lerobot(tmp_path)
    assert len(list(tmp_path.glob("data/*/*.parquet"))) == 1
    after = DatasetBuffer(str(tmp_path), into, seed=9)
    after.set_state(state)
    torch.testing.assert_close(after.sample(), batch, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("into", "capacity", "rows"),
    [
        (partial(ReplayBuffer, batch_size=4), 12, 12),
        (partial(SequenceBuffer, batch_size=3, sequence_length=4), 15, 15),
        (partial(EpisodeBuffer, batch_size=4), 15, 12),
    ],
    ids=["replay", "sequence", "episode"],
)
@pytest.mark.parametrize("with_spec", [True, False])
def test_a_buffer_that_would_drop_steps_is_refused(path, into, capacity, rows, with_spec):
    spec = EnvSpec("e", Box((1,)), Box((1,), low=-1e9, high=1e9)) if with_spec else None
    assert DatasetBuffer(str(path), partial(into, capacity=capacity), spec=spec).size == rows
    with pytest.raises(ConfigError, match="into.capacity") as error:
        assert DatasetBuffer(str(path), partial(into, capacity=capacity - 1), spec=spec).size
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_refused_episodes_need_no_room(path):
    into = partial(EpisodeBuffer, batch_size=4, capacity=6, min_return=7.0)  # only the last one: 0 + 1 + 2 + 3 + 4
    assert DatasetBuffer(str(path), into).size == 5


def test_damage_is_told_before_what_follows_from_it(path):
    """A batch larger than the dataset is an error as well, but not the one to begin with."""
    into = partial(ReplayBuffer, batch_size=256)
    with pytest.raises(ConfigError, match=r"into of the dataset .* \(12 steps\): min_size=256"):
        DatasetBuffer(str(path), into)
    file = path / "episode-000000.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DatasetError, match="episode-000000.safetensors was changed"):
        DatasetBuffer(str(path), into)
    file.write_bytes(data)
    (path / "episode-000002.safetensors").write_bytes(b"")
    with pytest.raises(DatasetError, match="episode-000002.safetensors has 0 bytes instead of"):
        DatasetBuffer(str(path), into)


def test_nothing_can_be_added(path):
    buffer = DatasetBuffer(str(path), RolloutBuffer)
    with pytest.raises(LabError, match="is read-only"):
        buffer.add(buffer.sample())


def test_bad_arguments_are_told_at_once(path):
    spec = EnvSpec("e", Box((1,)), Box((1,)))
    with pytest.raises(ConfigError, match="into.capacity=11 is less than the 12 rows"):
        DatasetBuffer(str(path), partial(ReplayBuffer, batch_size=4, capacity=11), spec=spec)
    with pytest.raises(ConfigError, match="into of a dataset needs _partial_: true"):
        DatasetBuffer(str(path), RolloutBuffer())
    with pytest.raises(DatasetError, match="does not exist"):
        DatasetBuffer(str(path / "no"), RolloutBuffer)
    with pytest.raises(DatasetError, match="no episode 9"):
        DatasetBuffer(str(path), RolloutBuffer, episodes=[9])
    with pytest.raises(ConfigError, match="come together"):
        DatasetBuffer(str(path), RolloutBuffer, action_low=0.0)


def spec(observation, action=None):
    return EnvSpec("e", observation, action or Box((1,)))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (spec(Box((2,))), "observations are [1], the environment has [2]"),
        (spec({"state": Box((1,))}), "one observation without a name, the environment wants 'state'"),
        (spec(Box((1,), torch.uint8)), "observations are float32, the environment has uint8"),
        (spec(Box((1,)), Box((2,))), "actions are [1], the environment has [2]"),
        (spec(Box((1,)), Discrete(3)), "actions are float32, the environment has int64"),
        (spec(Box((1,)), Box((1,), low=-1, high=1)), "actions lie in [0.5, 3.5], the environment takes [-1, 1]"),
    ],
)
def test_a_dataset_that_does_not_fit_the_environment_is_refused(path, wanted, message):
    with pytest.raises(DatasetError, match=re.escape(message)) as error:
        rollout(path, spec=wanted)
    assert "episode 0" in str(error.value)
    assert "\n" not in str(error.value)


def test_observations_are_picked_by_the_environments_names(tmp_path):
    episodes = [make_episode(0), make_episode(1)]
    write(tmp_path, episodes)
    camera, state = Box((3, 16, 16), torch.uint8), Box((4,))
    actions = Box((2,))
    found = rollout(
        tmp_path, spec=EnvSpec("e", {"camera": camera, "own": state}, actions), observation_keys={"own": "state"}
    )
    assert found["observations"].keys() == {"camera", "own"}
    wanted = np.concatenate([e.observations["state"] for e in episodes])
    np.testing.assert_array_equal(found["observations"]["own"][:, 0].numpy(), wanted)
    assert found["observations"]["camera"].dtype == torch.uint8
    single = rollout(tmp_path, spec=EnvSpec("e", state, actions), observation_keys="state")
    np.testing.assert_array_equal(single["observations"][:, 0].numpy(), wanted)
    with pytest.raises(DatasetError, match="name it by observation_keys"):
        rollout(tmp_path, spec=EnvSpec("e", state, actions))
    both = EnvSpec("e", {"camera": camera, "state": state}, actions)
    with pytest.raises(DatasetError, match=r"observation_keys 'stat'; did you mean 'state'\? \(choices: camera, state"):
        rollout(tmp_path, spec=both, observation_keys={"stat": "one"})
    with pytest.raises(DatasetError, match=r"no observation 'rgb' \(it has: state, one, grid"):
        rollout(tmp_path, spec=EnvSpec("e", {"rgb": camera}, actions))


def test_actions_are_mapped_to_the_environments_bounds(path):
    found = rollout(path, spec=EnvSpec("e", Box((1,)), Box((1,), low=-1, high=1)), action_low=0.0, action_high=[250.0])
    wanted = (np.concatenate([e.actions for e in EPISODES]) - 125) / 125
    np.testing.assert_allclose(found["actions"][:, 0].numpy(), wanted, atol=1e-6)
    assert found["actions"].dtype == torch.float32
    unbounded = EnvSpec("e", Box((1,)), Box((1,), high=math.inf))
    with pytest.raises(DatasetError, match="need an environment with bounded numbers"):
        rollout(path, spec=unbounded, action_low=0.0, action_high=1.0)


@pytest.mark.parametrize(("low", "high"), [(250.0, 0.0), (5.0, 5.0), ([0.0, 0.0], 250.0), (0.0, [[250.0], [250.0]])])
def test_bounds_of_recorded_actions_must_be_an_interval_of_each(path, low, high):
    wanted = f"episode 0: action_low and action_high are one number or [1] numbers, the lower first, not {low} and "
    with pytest.raises(DatasetError, match=re.escape(wanted)):
        rollout(path, spec=spec(Box((1,)), Box((1,), low=-1, high=1)), action_low=low, action_high=high)
    with pytest.raises(DatasetError, match=re.escape("episode 0: actions are [1], the environment has [2]")):
        rollout(path, spec=spec(Box((1,)), Box((2,), low=-1, high=1)), action_low=[0, 0], action_high=[250, 250])


def test_discrete_actions_become_plain_numbers(tmp_path):
    base = counting(0, 3)
    write(tmp_path, [Episode(**{**vars(base), "actions": np.array([[0], [2], [1]], dtype=np.int32)})])
    found = rollout(tmp_path, spec=EnvSpec("e", Box((1,)), Discrete(3)))
    assert found["actions"].shape == (3, 1)
    assert found["actions"].dtype == torch.int64
    with pytest.raises(DatasetError, match=re.escape("actions lie in [0, 2], the environment takes [0, 1]")):
        rollout(tmp_path, spec=EnvSpec("e", Box((1,)), Discrete(2)))


def test_each_of_several_choices_is_one_of_its_own(tmp_path):
    """(2, 0) is no choice of [2, 5], although all numbers are below 5; what is seen is held to that as well."""
    base, numbers = counting(0, 3), np.array([[0, 4], [2, 0], [1, 1]])
    write(tmp_path, [Episode(**{**vars(base), "actions": numbers})])
    assert rollout(tmp_path, spec=spec(Box((1,)), MultiDiscrete((3, 5))))["actions"][:, 0].tolist() == numbers.tolist()
    with pytest.raises(DatasetError, match=re.escape("actions lie in [0, 4], the environment takes choices of [2, 5]")):
        rollout(tmp_path, spec=spec(Box((1,)), MultiDiscrete((2, 5))))
    seen = {"observations": numbers, "final_observation": np.array([2, 5]), "actions": numbers[:, :1]}
    write(tmp_path / "seen", [Episode(**{**vars(base), **seen})])
    text = "episode 0: observations lie in [2, 5], the environment takes choices of [3, 5]"
    with pytest.raises(DatasetError, match=re.escape(text)):
        rollout(tmp_path / "seen", spec=spec(MultiDiscrete((3, 5)), Discrete(3)))


def test_yaml_builds_it_with_a_buffer_of_one_lane(path):
    node = {
        "_target_": "rl_lab.buffers.dataset.DatasetBuffer",
        "path": str(path),
        "into": {"_target_": "rl_lab.buffers.replay.ReplayBuffer", "_partial_": True, "batch_size": 4},
    }
    targets = Targets(AllowList())
    checked = targets.check("buffers.demos", node, inherited=("device", "num_envs", "spec", "seed"))
    supplied = {"device": torch.device("cpu"), "num_envs": 8, "spec": spec(Box((1,))), "seed": 1}
    buffer = targets.instantiate("buffers.demos", checked, lambda path: supplied)
    assert buffer.sample()["observations"].shape == (4, 1)
    (footprint,) = buffer.footprint()
    assert footprint.capacity == 12 + 3  # a sequence buffer also keeps final observations
    assert not footprint.is_in_checkpoints


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    """In order, in one directory, with an npz such as the page talks of."""
    monkeypatch.chdir(tmp_path)
    ends = np.array([3, 7])
    np.savez("pusht.npz", state=np.zeros((7, 5), np.float32), action=np.ones((7, 2), np.float32), episode_ends=ends)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(block, names)
    assert [len(episode) for episode in read_episodes("pusht")] == [3, 4]


def spoiled(number):
    """Return episodes of which the third holds this number as an action."""
    bad = counting(2, 5)
    bad.actions[3] = number
    return [counting(0, 4), counting(0, 3), bad]


@pytest.mark.parametrize("format", ["lab", "lerobot", "csv"])
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e4, r"actions lie in \[200.5, 10000\], the environment takes \[0, 300\]"),
        (np.nan, "actions is not finite at step 3"),
    ],
)
def test_every_episode_is_looked_at_before_a_run_begins(tmp_path, format, number, text):
    options = {"fps": 10} if format == "lerobot" else {}
    write(tmp_path / "data", spoiled(number), format, **options)
    spec = EnvSpec("Counting-v0", Box((1,)), Box((1,), low=0.0, high=300.0), 10)
    with pytest.raises(DatasetError, match=rf"data, episode 2: {text}"):
        DatasetBuffer(str(tmp_path / "data"), RolloutBuffer, spec=spec)
    DatasetBuffer(str(tmp_path / "data"), RolloutBuffer, spec=spec, episodes=2)  # the others do fit


def test_observations_and_rewards_are_finite(tmp_path):
    for name in ("observations", "rewards"):
        episode = counting(1, 4)
        vars(episode)[name][2] = np.inf
        write(tmp_path / name, [counting(0, 4), episode])
        with pytest.raises(DatasetError, match=f"episode 1: {name} is not finite at step 2"):
            DatasetBuffer(str(tmp_path / name), RolloutBuffer)


def test_a_dataset_is_opened_without_its_pictures(tmp_path, monkeypatch):
    """What is looked at is in the statistics of LeRobot, and in one part of a file of the lab's own."""
    write(tmp_path / "lab", [make_episode(number) for number in range(3)])
    write(tmp_path / "lerobot", [make_episode(number) for number in range(3)], "lerobot", fps=10)
    for format in ("lab", "lerobot"):
        reader, read = open_dataset(tmp_path / format), []
        monkeypatch.setattr(type(reader), "_read", lambda *_, read=read, **__: read.append(1), raising=False)
        found = reader.extremes(1)
        assert not read
        assert np.array_equal(found["actions"].max(0), make_episode(1).actions.max(0))
        assert not [name for name, array in found.items() if array.dtype == np.uint8]


def test_wrong_statistics_do_not_refuse_a_good_episode(tmp_path, monkeypatch):
    write(tmp_path / "data", EPISODES)
    monkeypatch.setattr(LabReader, "extremes", lambda *_: {"actions": np.full((2, 1), np.nan)})
    assert len(rollout(tmp_path / "data")["rewards"]) == 12


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("actions", "int64", True),
        ("actions/grip", "int64", True),
        ("observations/pose", "float32", True),
        ("observations/camera", "uint8", False),
        ("infos/actions", "bool", False),
    ],
)
def test_plain_numbers_are_actions_and_fractions(name, dtype, expected):
    assert is_plain(name, dtype) is expected
    assert (name in plain_numbers({name: np.zeros(2, dtype)})) is expected
