import importlib
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from rl_lab.buffers.datasets.format import DatasetError, Episode
from rl_lab.buffers.datasets.lab import LabReader, LabWriter
from rl_lab.buffers.datasets.open import open_dataset, open_writer, read_episodes
from rl_lab.core import ConfigError
from tests.buffers.dataset_parts import assert_same_episode, make_episode


def write(path, episodes):
    with LabWriter(path) as writer:
        return [writer.save(episode) for episode in episodes]


@pytest.mark.parametrize("plain", [False, True])
def test_episodes_come_back_bit_for_bit(tmp_path, plain):
    episodes = [make_episode(n, n + 1, truncated=n == 1, plain=plain, task=[None, "b", ""][n]) for n in range(3)]
    assert write(tmp_path, episodes) == [0, 1, 2]
    reader = open_dataset(tmp_path)
    assert list(reader.lengths) == [1, 2, 3]
    for found, wanted in zip(read_episodes(tmp_path), episodes, strict=True):
        assert_same_episode(found, wanted)
    (only,) = read_episodes(tmp_path, episodes=[1])
    assert_same_episode(only, episodes[1])


def test_an_episode_without_its_final_observation_says_so(tmp_path):
    wanted = make_episode(0, plain=True)
    cut = Episode(**{**vars(wanted), "final_observation": wanted.observations[-1], "has_final_observation": False})
    write(tmp_path, [cut])
    (found,) = read_episodes(tmp_path)
    assert_same_episode(found, wanted, final=False)
    np.testing.assert_array_equal(found.final_observation, wanted.observations[-1])


def test_a_hash_tells_episodes_apart_by_their_numbers():
    episode = make_episode(0)
    assert episode.sha256() == make_episode(0, task="other words").sha256()
    ints = np.zeros(len(episode), np.int64)
    changes = {
        "actions": episode.actions * 2,
        "rewards": episode.rewards[::-1],
        "terminated": (not episode.terminated),
        "final_observation": {key: array + 1 for key, array in episode.final_observation.items()},
        "has_final_observation": False,
        "infos": {**episode.infos, "zeros": ints},
    }
    others = [
        Episode(**{**vars(episode), name: value, "truncated": name == "terminated"}).sha256()
        for name, value in changes.items()
    ]
    floats = Episode(**{**vars(episode), "infos": {**episode.infos, "zeros": ints.astype(float)}})
    assert len({episode.sha256(), floats.sha256(), *others}) == 2 + len(changes)


def test_the_names_of_new_files_and_directories_are_durable(tmp_path, monkeypatch):
    """A power cut takes back the name of a file whose directory was not synced after it got the name."""
    unsafe, sync, make, rename, open_file = set(), os.fsync, Path.mkdir, os.replace, os.open

    def name_of(descriptor):
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))

    def note_sync(descriptor):
        sync(descriptor)
        unsafe.difference_update({path for path in unsafe if path.parent == name_of(descriptor)})

    def note_mkdir(path, *args, **kwargs):
        make(path, *args, **kwargs)
        unsafe.add(path)

    def note_rename(source, target):
        rename(source, target)
        unsafe.add(Path(target))

    def note_open(path, flags, *args, **kwargs):
        if flags & os.O_CREAT and not os.path.exists(path):
            unsafe.add(Path(path))
        return open_file(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "mkdir", note_mkdir)
    monkeypatch.setattr(os, "replace", note_rename)
    monkeypatch.setattr(os, "open", note_open)
    path = tmp_path / "deep" / "data"
    for number in range(2):
        write(path, [make_episode(number)])
        assert (path / "index.jsonl").exists()
        assert unsafe == set()


def test_what_a_killed_writer_left_is_passed_over_and_then_removed(tmp_path):
    write(tmp_path, [make_episode(0), make_episode(1)])
    (tmp_path / "episode-000002.safetensors").write_bytes(b"no line in the index yet")
    (tmp_path / ".tmp-0-episode-000003.safetensors").write_bytes(b"half")
    with (tmp_path / "index.jsonl").open("a") as file:
        file.write('{"file": "episode-000002.safe')
    assert len(LabReader(tmp_path).lengths) == 2
    assert write(tmp_path, [make_episode(2)]) == [2]
    assert_same_episode(LabReader(tmp_path).read(2), make_episode(2))
    assert not list(tmp_path.glob(".tmp-*"))
    assert len((tmp_path / "index.jsonl").read_text().splitlines()) == 3


def test_only_one_process_writes(tmp_path):
    with LabWriter(tmp_path), pytest.raises(DatasetError, match="being written by another process"):
        LabWriter(tmp_path)
    LabWriter(tmp_path).close()


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_index(path, name):
    entry = json.loads((path / "index.jsonl").read_text())
    (path / "index.jsonl").write_text(json.dumps({**entry, "file": name}) + "\n")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "is not JSON": lambda p: (p / "dataset.json").write_text("{"),
    "format is 'other'": lambda p: edit_json(p / "dataset.json", format="other"),
    "version 2 is newer": lambda p: edit_json(p / "dataset.json", version=2),
    "fields must map": lambda p: edit_json(p / "dataset.json", fields={"actions": 1}),
    "'actions' is float32[2] instead of float32[3]": lambda p: edit_json(
        p / "dataset.json",
        fields={
            **json.loads((p / "dataset.json").read_text())["fields"],
            "actions": {"dtype": "float32", "shape": [3]},
        },
    ),
    "index.jsonl, line 1: not an entry": lambda p: (p / "index.jsonl").write_text("7\n"),
    "line 1: not an entry": lambda p: edit_index(p, "../episode-000000.safetensors"),
    "line 1: not an entry with": lambda p: edit_index(p, ".."),
    "line 1: not an entry with file": lambda p: edit_index(p, ""),
    "line 1: not an entry with file,": lambda p: edit_index(p, "episode-000000\0.safetensors"),
    "episode-000000.safetensors was changed": lambda p: flip(p / "episode-000000.safetensors"),
    "bytes instead of": lambda p: (p / "episode-000000.safetensors").write_bytes(b""),
    "cannot be read: No such file": lambda p: (p / "episode-000000.safetensors").unlink(),
    "holds no dataset": lambda p: (p / "dataset.json").unlink(),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_told_in_one_line_that_names_the_file(tmp_path, message):
    path = tmp_path / "data"
    write(path, [make_episode(0)])
    DAMAGE[message](path)
    with pytest.raises(DatasetError, match=re.escape(message)) as error:
        list(read_episodes(path))
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_paths_that_are_no_dataset(tmp_path):
    with pytest.raises(DatasetError, match="does not exist"):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="is a file"):
        open_dataset(tmp_path / "file")
    with pytest.raises(DatasetError, match="is not empty and has no"):
        LabWriter(tmp_path)
    with pytest.raises(ConfigError, match="unknown dataset format 'pickle'"):
        open_dataset(tmp_path, "pickle")
    with pytest.raises(ConfigError, match="unknown dataset format to write 'minari'"):
        open_writer(tmp_path / "new", "minari")
    write(tmp_path / "new", [make_episode(0)])
    with pytest.raises(DatasetError, match=r"no episode 3 \(it has 0 to 0\)"):
        list(read_episodes(tmp_path / "new", episodes=[0, 3]))


def test_an_episode_of_another_shape_is_refused_and_nothing_is_written(tmp_path):
    with LabWriter(tmp_path) as writer:
        writer.save(make_episode(0))
        with pytest.raises(DatasetError, match="'observations'"):
            writer.save(make_episode(1, plain=True))
        assert writer.save(make_episode(1)) == 1
    assert len(LabReader(tmp_path).lengths) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truncated": True}, "either terminated or truncated"),
        ({"rewards": np.zeros((5, 1))}, "rewards of an episode must be"),
        ({"rewards": np.zeros(0)}, "T >= 1"),
        ({"actions": np.zeros((4, 2))}, "actions of an episode has 4 steps"),
        ({"infos": {"name": np.array(["a"] * 5)}}, "infos/name of an episode is <U1"),
        ({"final_observation": np.zeros(3)}, "final_observation does not look like"),
    ],
)
def test_an_episode_checks_itself(change, message):
    with pytest.raises(DatasetError, match=message):
        Episode(**{**vars(make_episode(0, 5, plain=True)), **change})


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("pyarrow", "lerobot_columns", "lerobot-data"),
        ("av", "video_file", "lerobot-data"),
        ("minari", "minari", "minari"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package, module, extra):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"rl_lab.buffers.datasets.{module}", raising=False)
    with pytest.raises(ConfigError, match=re.escape(f"{package} is not installed: pip install 'rl-lab[{extra}]'")):
        importlib.import_module(f"rl_lab.buffers.datasets.{module}")
