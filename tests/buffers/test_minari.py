import json
import shutil
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets.format import DatasetError
from rl_lab.buffers.datasets.open import open_dataset
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.core import CheckpointError
from tests.buffers.dataset_parts import each

minari = pytest.importorskip("minari")
NEEDS_HDF5 = pytest.mark.skipif(find_spec("h5py") is None, reason="h5py is not installed")

SPACE = gymnasium.spaces.Dict(
    {
        "state": gymnasium.spaces.Box(-9, 9, (3,), np.float32),
        "camera": gymnasium.spaces.Dict({"rgb": gymnasium.spaces.Box(0, 255, (8, 6, 3), np.uint8)}),
    }
)


def buffers(plain):
    """Return two episodes as Minari takes them: one more observation than actions."""
    for number, steps in enumerate((4, 6)):
        rng = np.random.default_rng(number)
        state = rng.normal(size=(steps + 1, 3)).astype(np.float32)
        rgb = rng.integers(0, 255, (steps + 1, 8, 6, 3), dtype=np.uint8)
        ends = np.arange(steps) == steps - 1
        yield minari.data_collector.EpisodeBuffer(
            observations=state if plain else {"state": state, "camera": {"rgb": rgb}},
            actions=rng.integers(0, 3, steps),
            rewards=rng.normal(size=steps),
            terminations=ends & (number == 0),
            truncations=ends & (number == 1),
            infos={"success": (np.arange(steps + 1) == steps).tolist()},
        )


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def create(plain, data_format="arrow"):
        minari.create_dataset_from_buffers(
            dataset_id="toy/two-v0",
            buffer=list(buffers(plain)),
            observation_space=SPACE["state"] if plain else SPACE,
            action_space=gymnasium.spaces.Discrete(3),
            data_format=data_format,
            jpeg_encoding=False,
            author="nobody",
            author_email="nobody@example.org",
            code_permalink="none",
            algorithm_name="random",
        )
        return tmp_path / "toy" / "two-v0"

    return create


def assert_same(found, wanted):
    found, wanted = ({"": tree} if isinstance(tree, np.ndarray) else tree for tree in (found, wanted))
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array)


@pytest.mark.filterwarnings("ignore")  # Minari warns of metadata that was not given
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("data_format", ["arrow", "parquet", pytest.param("hdf5", marks=NEEDS_HDF5)])
def test_a_minari_dataset_is_read_as_it_was_made(make, plain, data_format):
    reader = open_dataset(make(plain, data_format))
    assert list(reader.lengths) == [4, 6]
    for number, (found, made) in enumerate(zip(reader.episodes(), buffers(plain), strict=True)):
        wanted = made.observations
        if not plain:
            wanted = {"state": wanted["state"], "camera.rgb": wanted["camera"]["rgb"].transpose(0, 3, 1, 2)}
        assert_same(found.observations, each(wanted, lambda array: array[:-1]))
        assert_same(found.final_observation, each(wanted, lambda array: array[-1]))
        np.testing.assert_array_equal(found.actions, made.actions)
        np.testing.assert_array_equal(found.rewards, np.asarray(made.rewards, dtype=np.float32))
        assert (found.terminated, found.truncated) == (number == 0, number == 1)
        assert found.infos["success"].tolist() == [False] * (len(found) - 1) + [True]
        assert found.has_final_observation


@pytest.mark.filterwarnings("ignore")
def test_other_numbers_of_the_same_shape_are_refused_on_resume(make, tmp_path):
    into = partial(ReplayBuffer, batch_size=4)
    path = make(True)
    state = DatasetBuffer(str(path), into).get_state()
    kept = shutil.copytree(path, tmp_path / "kept")
    metadata = (path / "data" / "metadata.json").read_bytes()
    shutil.rmtree(path)
    minari.create_dataset_from_buffers(
        dataset_id="toy/two-v0",
        buffer=[replace(made, rewards=made.rewards + 1) for made in buffers(True)],
        observation_space=SPACE["state"],
        action_space=gymnasium.spaces.Discrete(3),
        data_format="arrow",
        author="nobody",
        author_email="nobody@example.org",
        code_permalink="none",
        algorithm_name="random",
    )
    (path / "data" / "metadata.json").write_bytes(metadata)  # which is all the same
    with pytest.raises(CheckpointError, match="sha256 of .* differs"):
        DatasetBuffer(str(path), into).set_state(state)
    DatasetBuffer(str(kept), into).set_state(state)


@pytest.mark.filterwarnings("ignore")
def test_damage_is_told_in_one_line(make):
    path = make(True)
    metadata = path / "data" / "metadata.json"
    good = metadata.read_text()
    metadata.write_text(json.dumps({**json.loads(good), "minari_version": "99.0.0"}))
    with pytest.raises(DatasetError, match="does not support the dataset"):
        open_dataset(path)
    metadata.write_text(good)
    (path / "data" / "1" / "metadata.json").write_text(json.dumps({"id": 1, "total_steps": 7}))
    with pytest.raises(DatasetError, match="episode 1 has 6 of 7 steps"):
        open_dataset(path).read(1)
    for file in (path / "data" / "0").glob("*.arrow"):
        file.write_bytes(b"no arrow")
    with pytest.raises(DatasetError, match="episode 0 cannot be read"):
        open_dataset(path).read(0)
    metadata.unlink()
    with pytest.raises(DatasetError, match="not a Minari dataset"):
        open_dataset(path, "minari")


@pytest.mark.filterwarnings("ignore")
def test_choices_and_numbers_stay_apart_and_parts_of_one_kind_are_one_array(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    gear, arm = gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    rng = np.random.default_rng(0)
    turns = rng.uniform(-1, 1, (4, 2)).astype(np.float32)
    for name, second, chosen in (("mixed", arm, turns), ("choices", gear, np.arange(4) % 3)):
        state = rng.normal(size=(5, 3)).astype(np.float32)
        made = minari.data_collector.EpisodeBuffer(
            observations=state,
            actions={"gear": np.array([2, 0, 1, 1]), "other": {"arm": chosen}},
            rewards=np.zeros(4),
            terminations=np.arange(4) == 3,
            truncations=np.zeros(4, bool),
            infos={},
        )
        minari.create_dataset_from_buffers(
            dataset_id=f"toy/{name}-v0",
            buffer=[made],
            observation_space=SPACE["state"],
            action_space=gymnasium.spaces.Dict({"gear": gear, "other": gymnasium.spaces.Dict({"arm": second})}),
            data_format="arrow",
            author="nobody",
            author_email="nobody@example.org",
            code_permalink="none",
            algorithm_name="random",
        )
    (mixed,), (choices,) = (open_dataset(tmp_path / "toy" / f"{name}-v0").episodes() for name in ("mixed", "choices"))
    assert_same(mixed.actions, {"gear": np.array([2, 0, 1, 1]), "other.arm": turns})
    assert choices.actions.tolist() == [[2, 0], [0, 1], [1, 2], [1, 0]]
