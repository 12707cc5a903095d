"""Damaged, foreign and hostile checkpoints: named, skipped, never loaded, nothing executed."""

import hashlib
import json
import os
import pickle
import re
import shutil

import numpy as np
import pytest
import torch

from rl_lab.core import CheckpointError
from rl_lab.tracking import checkpoint_files
from rl_lab.tracking.checkpoint import CheckpointStore
from tracking.trees import assert_same

FILES = ["tensors.safetensors", "state.json", "MANIFEST.json"]


def state(value):
    return {"w": torch.full((50,), float(value)), "rng": [value, 2**100], "array": np.arange(value)}


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    for value in (1, 2):
        store.save(state(value), counters={"env_steps": value}, phase="p")
    return store


def newest(store):
    return store.directory / "000002"


def expect_skipped(store, word):
    loaded = store.load_newest()
    assert loaded.path.name == "000001"
    assert_same(state(1), loaded.state)
    assert len(loaded.damaged) == 1
    assert loaded.damaged[0].startswith("000002: ")
    assert word in loaded.damaged[0]
    assert "\n" not in loaded.damaged[0]
    with pytest.raises(CheckpointError, match="000002 is damaged"):
        store.load(newest(store))


def rewrite_manifest(directory, change):
    """Change a manifest as a stranger would: with a matching hash."""
    path = directory / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    del manifest["sha256"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


def replace_file(directory, name, content):
    """Replace a file as a stranger would: with a matching entry in the manifest."""
    (directory / name).write_bytes(content)
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    rewrite_manifest(directory, lambda manifest: manifest["files"].update({name: entry}))


@pytest.mark.parametrize("name", FILES)
def test_truncated(store, name):
    path = newest(store) / name
    os.truncate(path, path.stat().st_size // 2)
    expect_skipped(store, name)


@pytest.mark.parametrize("name", FILES)
def test_missing(store, name):
    (newest(store) / name).unlink()
    expect_skipped(store, f"{name} is missing")


@pytest.mark.parametrize("name", FILES)
def test_grown(store, name):
    with open(newest(store) / name, "ab") as file:
        file.write(b"x")
    expect_skipped(store, name)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere(store, name):
    path = newest(store) / name
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in {0, 7, 8, len(content) - 1, *rng.integers(0, len(content), 60).tolist()}:
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        if is_newer_schema(flipped):  # the digit of schema_version became a higher one
            with pytest.raises(CheckpointError, match="schema_version"):
                store.load_newest()
        elif store.load_newest().path.name == "000002":  # one kind of white space became another
            assert name == "MANIFEST.json"
            assert json.loads(flipped) == json.loads(content)


def is_newer_schema(content):
    found = re.match(rb'\{\s*"schema_version": (\d)', content)
    return found is not None and int(found[1]) > 2


def test_half_deleted_directory(store):
    shutil.rmtree(newest(store))
    newest(store).mkdir()
    (newest(store) / "state.json").write_text("{}")
    expect_skipped(store, "MANIFEST.json is missing")


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe", b"{", b"[]", b"3", b"null", b"{}", b"[" * 100_000, b'{"schema_version": "1"}']
)
def test_garbage_manifest(store, garbage):
    (newest(store) / "MANIFEST.json").write_bytes(garbage)
    expect_skipped(store, "MANIFEST.json")


def test_endless_manifest(store):
    with open(newest(store) / "MANIFEST.json", "ab") as file:
        file.truncate(1 << 26)
    expect_skipped(store, "too long")


@pytest.mark.parametrize("key", ["counters", "phase", "score", "files", "serial"])
def test_manifest_without_a_field(store, key):
    rewrite_manifest(newest(store), lambda manifest: manifest.pop(key))
    expect_skipped(store, "MANIFEST.json")


def test_newer_schema_is_refused_and_not_passed_over(store):
    path = newest(store) / "MANIFEST.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    for load in (store.load_newest, lambda: store.load(newest(store))):
        with pytest.raises(
            CheckpointError, match=r"000002/MANIFEST.json has schema_version 99; this lab reads up to 2"
        ):
            load()
    assert [entry.serial for entry in store.entries()] == [1]
    for value in (3, 4, 5):  # what a newer lab wrote is not ours to delete
        store.save(state(value), counters={}, phase="p")
    assert newest(store).is_dir()
    assert not (store.directory / "000001").exists()


def test_an_older_schema_is_read(store):
    """Its files are the same; an exact resume looks at the version by itself."""
    rewrite_manifest(newest(store), lambda manifest: manifest.update(schema_version=1))
    loaded = store.load_newest()
    assert (loaded.path, loaded.manifest["schema_version"]) == (newest(store), 1)
    assert [entry.schema_version for entry in store.entries()] == [2, 1]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a/b", "a\\b", "", "x\0y"])
def test_paths_that_lead_out_are_refused(store, name, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("secret")
    entry = {"sha256": hashlib.sha256(b"secret").hexdigest(), "bytes": 6}
    rewrite_manifest(newest(store), lambda manifest: manifest["files"].update({name: entry}))
    expect_skipped(store, "not a plain file name")


@pytest.mark.parametrize("entry", [None, {}, {"bytes": "6", "sha256": "x"}, {"bytes": 6}])
def test_entries_without_size_or_hash(store, entry):
    rewrite_manifest(newest(store), lambda manifest: manifest["files"].update({"state.json": entry}))
    expect_skipped(store, "no bytes and sha256")


def test_a_link_is_not_followed(store, tmp_path):
    path = newest(store) / "state.json"
    shutil.move(path, tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    expect_skipped(store, "not a regular file")


class Bomb:
    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def test_pickles_are_never_executed(store, tmp_path):
    bomb = Bomb()
    bomb.target = tmp_path / "exploded"
    payload = pickle.dumps(bomb)
    (store.directory / "000001" / "extra.pkl").write_bytes(payload)  # not listed: ignored
    replace_file(newest(store), "tensors.safetensors", payload)
    expect_skipped(store, "not a safetensors file")
    replace_file(newest(store), "state.json", payload)
    expect_skipped(store, "do not fit together")
    torch.save({"w": torch.ones(1), "bomb": 1}, tmp_path / "zip.pt")
    replace_file(newest(store), "tensors.safetensors", (tmp_path / "zip.pt").read_bytes())
    expect_skipped(store, "do not fit together")
    assert not bomb.target.exists()


@pytest.mark.parametrize(
    "structure",
    [["tensor", "nothing"], ["array", "w", "|O", [1]], ["bytes", "w", "os", [1]], ["dict", 3], [[[]]], ["int", "zz"]],
)
def test_state_that_does_not_fit_its_tensors(store, structure):
    replace_file(newest(store), "state.json", json.dumps(structure).encode())
    expect_skipped(store, "do not fit together")


def test_unreadable_file(store, monkeypatch):
    """As root every file is readable, so the system call is what fails here."""
    real = open

    def refuse(path, *arguments, **options):
        if str(path).endswith("000002/tensors.safetensors"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(checkpoint_files, "open", refuse, raising=False)
    expect_skipped(store, "tensors.safetensors: Permission denied")


def test_disk_error_while_reading_the_state(store, monkeypatch):
    def fail(path):
        if path.parent.name == "000002":
            raise OSError(5, "Input/output error")
        return real(path)

    real = checkpoint_files.read_tensors
    monkeypatch.setattr(checkpoint_files, "read_tensors", fail)
    expect_skipped(store, "Input/output error")


def test_unreadable_manifest(store, monkeypatch):
    manifest = newest(store) / "MANIFEST.json"
    real = type(manifest).read_bytes

    def refuse(path):
        if path == manifest:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(type(manifest), "read_bytes", refuse)
    expect_skipped(store, "MANIFEST.json: Permission denied")


def test_none_is_whole(store):
    (newest(store) / "state.json").unlink()
    os.truncate(store.directory / "000001" / "tensors.safetensors", 10)
    with pytest.raises(CheckpointError) as caught:
        store.load_newest()
    message = str(caught.value)
    assert str(store.directory) in message
    assert "000002: state.json is missing" in message
    assert "000001: tensors.safetensors has 10 bytes" in message
    assert "\n" not in message
