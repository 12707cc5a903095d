import errno
import os
import subprocess

import pytest
import torch

from rl_lab.core import CheckpointError, ConfigError
from rl_lab.tracking.checkpoint import CheckpointStore
from tracking.trees import assert_same


def state(value):
    return {"counters": {"env_steps": value}, "w": torch.full((5,), float(value)), "list": [value, (value,)]}


def save(store, value, score=None):
    return store.save(state(value), counters={"env_steps": value}, phase="joint", score=score)


def names(store):
    return sorted(path.name for path in store.directory.iterdir())


def test_save_and_load(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    path = save(store, 3, score=1.5)
    loaded = store.load_newest()
    assert path.name == "000001"
    assert (loaded.path, loaded.damaged) == (path, [])
    assert_same(state(3), loaded.state)
    manifest = loaded.manifest
    assert (manifest["schema_version"], manifest["serial"], manifest["phase"], manifest["score"]) == (
        2,
        1,
        "joint",
        1.5,
    )
    assert manifest["counters"] == {"env_steps": 3}
    assert set(manifest["files"]) == {"tensors.safetensors", "state.json"}
    assert manifest["versions"]["torch"] == str(torch.__version__)
    assert_same(store.load(path).state, loaded.state)


def test_rotation_keeps_last_and_best(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_best=1)
    for value, score in [(1, 5.0), (2, 9.0), (3, None), (4, 9.0), (5, 1.0), (6, float("nan")), (7, None)]:
        save(store, value, score)
    # Of the two nines the newer one is the best; the NaN is no score.
    assert names(store) == ["000004", "000006", "000007", "best", "latest"]
    assert (tmp_path / "latest").read_text() == "000007\n"
    assert (tmp_path / "best").read_text() == "000004\n"
    assert store.best().serial == 4
    assert [(entry.serial, entry.score, entry.counters["env_steps"]) for entry in store.entries()] == [
        (4, 9.0, 4),
        (6, None, 6),
        (7, None, 7),
    ]


@pytest.mark.parametrize(
    ("last", "best", "kept"), [(1, 0, [5]), (3, 0, [3, 4, 5]), (1, 2, [1, 2, 5]), (1, 9, [1, 2, 3, 4, 5])]
)
def test_rotation_counts(tmp_path, last, best, kept):
    store = CheckpointStore(tmp_path, keep_last=last, keep_best=best)
    for value, score in enumerate([9.0, 8.0, 7.0, 6.0, 5.0], 1):
        save(store, value, score)
    assert [entry.serial for entry in store.entries()] == kept


def test_rotation_drops_damaged_ones_only_behind_the_last(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_best=0)
    save(store, 1)
    damaged = save(store, 2)
    (damaged / "MANIFEST.json").unlink()
    save(store, 3)
    assert [path for path in names(store) if path.isdigit()] == [
        "000001",
        "000002",
        "000003",
    ]  # 1 is the second whole one
    save(store, 4)
    assert [path for path in names(store) if path.isdigit()] == ["000003", "000004"]


def test_wrong_keep_counts(tmp_path):
    with pytest.raises(ConfigError, match="keep_last"):
        CheckpointStore(tmp_path, keep_last=0)
    with pytest.raises(ConfigError, match="keep_best"):
        CheckpointStore(tmp_path, keep_best=-1)


def test_leaves_that_cannot_be_stored_leave_nothing(tmp_path):
    store = CheckpointStore(tmp_path)
    with pytest.raises(TypeError, match="'a.0'"):
        store.save({"a": [object()]}, counters={}, phase="x")
    assert names(store) == []


def test_nothing_there(tmp_path):
    store = CheckpointStore(tmp_path / "none")
    assert store.entries() == []
    assert store.best() is None
    with pytest.raises(CheckpointError, match=r"none: there is none"):
        store.load_newest()
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        store.load(tmp_path / "none")


def test_names_that_are_not_serials_are_ignored(tmp_path):
    store = CheckpointStore(tmp_path)
    for name in ("7", "abc", "٠٠٠٠٠٩"):
        (tmp_path / name).mkdir()
    os.symlink(tmp_path / "abc", tmp_path / "000008")
    assert save(store, 1).name == "000001"
    assert store.load_newest().damaged == []


def test_leftovers_go_with_the_next_save(tmp_path):
    store = CheckpointStore(tmp_path)
    (tmp_path / ".tmp-000001-dead").mkdir()
    (tmp_path / ".tmp-000001-dead" / "tensors.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-latest-dead").write_text("000")
    save(store, 1)
    assert names(store) == ["000001", "latest"]


@pytest.mark.parametrize("call", range(5))
def test_full_disk_at_every_fsync_keeps_what_was_saved(tmp_path, monkeypatch, call):
    store = CheckpointStore(tmp_path)
    save(store, 1, score=1.0)
    real, calls = os.fsync, iter(range(100))

    def failing(descriptor):
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(CheckpointError, match=f"{tmp_path}: disk full") as caught:
        save(store, 2, score=2.0)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert not [name for name in names(store) if name.startswith(".tmp")]
    loaded = store.load_newest()
    assert_same(state(1 if call < 4 else 2), loaded.state)  # tensors, state, manifest, directory; then it is published
    assert loaded.damaged == []
    save(store, 3)
    assert_same(state(3), store.load_newest().state)


def test_a_full_disk_at_the_pointers_does_not_stop_the_rotation(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="disk full"):
        save(store, 2)
    assert names(store) == ["000002", "latest"]
    assert_same(state(2), store.load_newest().state)


def test_full_disk_for_real(tmp_path):
    """On a 256 kB disk the third copy of 100 kB does not fit."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("only root may mount a tmpfs")
    try:
        store = CheckpointStore(disk / "checkpoints", keep_last=2)
        for value in (1, 2):
            store.save({"w": torch.full((25_000,), float(value))}, counters={}, phase="x")
        for _ in range(2):
            with pytest.raises(CheckpointError, match="disk full"):
                store.save({"w": torch.full((25_000,), 3.0)}, counters={}, phase="x")
            assert store.load_newest().state["w"][0] == 2.0
            assert not [name for name in names(store) if name.startswith(".tmp")]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_interrupt_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    save(store, 1)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(store, 2)
    assert names(store) == ["000001", "latest"]


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot save a checkpoint in .*file/checkpoints"):
        save(CheckpointStore(tmp_path / "file" / "checkpoints"), 1)


@pytest.mark.bench
def test_save_time(tmp_path):
    import time

    for megabytes in (1, 100):
        tree = {"w": torch.randn(megabytes * 250_000)}
        store = CheckpointStore(tmp_path / str(megabytes))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            store.save(tree, counters={}, phase="x")
            times.append(time.perf_counter() - start)
        start = time.perf_counter()
        store.load_newest()
        print(
            f"{megabytes} MB: save {sorted(times)[2] * 1e3:.1f} ms, load {(time.perf_counter() - start) * 1e3:.1f} ms"
        )
