"""Checkpoints that write only what is new: linked, written, damaged, rolled back."""

import errno
import hashlib
import json
import os
import subprocess
from uuid import uuid4

import pytest
import torch

from rl_lab.core import CheckpointError, Segment
from rl_lab.tracking import segments as segments_module
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import tree_hash
from rl_lab.tracking.state_codec import decode, encode
from tracking.test_checkpoint_files import replace_file, rewrite_manifest
from tracking.test_state_codec import DTYPES
from tracking.trees import assert_same

LARGE = 1 << 17  # int64 numbers: as many bytes as a mapped segment has


def segment(*values):
    return Segment(uuid4().hex, torch.tensor(values))


def save(store, *segments):
    return store.save({"rows": list(segments)}, counters={}, phase="p")


def file_of(checkpoint, part):
    return checkpoint / f"segment-{part.key}"


def inode(path):
    return os.stat(path).st_ino


def entry_of(checkpoint, part):
    return json.loads((checkpoint / "MANIFEST.json").read_text())["files"][f"segment-{part.key}"]


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep_last=9)


@pytest.fixture
def written(monkeypatch):
    """Return the names of the segments that were written and not linked."""
    names = []

    def note(path, blocks):
        names.append(path.name.removeprefix("segment-"))
        return real(path, blocks)

    real = segments_module.write_blocks
    monkeypatch.setattr(segments_module, "write_blocks", note)
    return names


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_comes_back_to_the_bit(dtype, store):
    values = torch.tensor([[0, 1, 2], [3, 1, 0]], dtype=torch.float32).to(dtype)
    shapes = [values, values[1, 0], values[:, :0], values.t()[1:]]
    state = {str(index): Segment(uuid4().hex, part) for index, part in enumerate(shapes)}
    path = store.save(state, counters={}, phase="p")
    back = store.load_newest().state
    assert_same(state, back)
    for part in back.values():
        content = file_of(path, part).read_bytes()
        assert entry_of(path, part)["bytes"] == len(content) == part.tensor.nbytes
        assert entry_of(path, part)["sha256"] == hashlib.sha256(content).hexdigest()


def test_only_what_is_new_is_written_and_the_rest_is_the_same_file(store, written):
    a, b, c = segment(1, 2), segment(3, 4), segment(5, 6)
    first = save(store, a, b)
    second = save(store, b, c)
    assert written == [a.key, b.key, c.key]
    assert inode(file_of(first, b)) == inode(file_of(second, b))
    assert entry_of(first, b) == entry_of(second, b)
    assert not file_of(second, a).exists()
    assert_same({"rows": [b, c]}, store.load_newest().state)
    assert_same({"rows": [a, b]}, store.load(first).state)


def test_a_state_goes_on_in_another_store(store, written, tmp_path):
    """A fork: its first checkpoint is whole by itself, the later ones are linked."""
    save(store, segment(*range(9)))
    (part,) = store.load_newest().state["rows"]
    fork = CheckpointStore(tmp_path / "fork")
    first, second = save(fork, part), save(fork, part)
    assert written == [part.key, part.key]
    assert inode(file_of(first, part)) == inode(file_of(second, part))
    assert_same({"rows": [part]}, fork.load_newest().state)


@pytest.mark.parametrize("kind", ["symlink", "folder", "pipe", "longer"])
def test_only_plain_files_of_the_right_length_are_linked(store, written, tmp_path, kind):
    part = segment(1, 2)
    first = save(store, part)
    file, elsewhere = file_of(first, part), tmp_path / "elsewhere"
    file.rename(elsewhere)
    {
        "symlink": lambda: file.symlink_to(elsewhere),
        "folder": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
        "longer": lambda: file.write_bytes(bytes(64)),
    }[kind]()
    second = save(store, part)
    assert written == [part.key, part.key]
    assert not file_of(second, part).is_symlink()
    assert_same({"rows": [part]}, store.load_newest().state)


def test_segments_outlive_the_checkpoint_they_were_written_for(tmp_path, written):
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=0)
    old = segment(*range(LARGE))
    for number in range(5):
        save(store, old, segment(number))
    assert [path.name for path in sorted(tmp_path.glob("0*"))] == ["000005"]
    assert written.count(old.key) == 1
    assert_same(old, store.load_newest().state["rows"][0])


@pytest.mark.parametrize("length", [3, LARGE])
def test_loaded_segments_are_private_and_outlive_their_file(tmp_path, length):
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=0)
    original = segment(*range(length))
    first = save(store, original)
    (loaded,) = store.load_newest().state["rows"]
    content = file_of(first, loaded).read_bytes()
    loaded.tensor[0] = 7
    assert file_of(first, loaded).read_bytes() == content
    save(store, segment(1))
    assert not first.exists()
    assert loaded.tensor.tolist() == [7, *range(1, length)]
    save(store, loaded)  # its file is gone: written from memory
    assert_same(loaded, store.load_newest().state["rows"][0])


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_links_do_not_work_segments_are_written(store, written, monkeypatch, code):
    part = segment(1, 2)
    first = save(store, part)

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    second = save(store, part)
    assert written == [part.key, part.key]
    assert inode(file_of(first, part)) != inode(file_of(second, part))
    assert_same({"rows": [part]}, store.load_newest().state)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_bytes(b"short"),
        lambda path: path.unlink(),
    ],
    ids=["changed", "cut", "removed"],
)
def test_damage_to_an_old_checkpoint_is_not_carried_on(store, written, damage):
    part, other = segment(1, 2), segment(3)
    first = save(store, part, other)
    damage(file_of(first, part))
    second = save(store, part, other)
    assert written == [part.key, other.key, part.key]
    assert_same({"rows": [part, other]}, store.load_newest().state)
    with pytest.raises(CheckpointError, match=f"segment-{part.key}"):
        store.load(first)
    third = save(store, part, other)  # from the whole one
    assert inode(file_of(second, part)) == inode(file_of(third, part))
    assert len(written) == 3


def test_a_copied_run_is_compared_once_and_linked_again(store, written):
    part = segment(*range(100))
    first = save(store, part)
    os.utime(file_of(first, part), ns=(1, 1))
    second = save(store, part)
    assert written == [part.key]
    assert inode(file_of(first, part)) == inode(file_of(second, part))
    assert entry_of(second, part) == {**entry_of(first, part), "mtime_ns": 1}


def test_an_unreadable_old_segment_is_written_anew(store, written, monkeypatch):
    part = segment(1, 2)
    os.utime(file_of(save(store, part), part), ns=(1, 1))

    def fail(path, *arguments, **options):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(segments_module, "open", fail, raising=False)
    save(store, part)
    assert written == [part.key, part.key]


def test_going_back_to_an_older_checkpoint_is_exact(store, written):
    kept, replaced, late = segment(0), segment(1), segment(2)
    first = save(store, kept, replaced)
    second = save(store, kept, late)
    back = store.load(first).state
    assert_same({"rows": [kept, replaced]}, back)
    newer = segment(3)
    third = save(store, *back["rows"], newer)
    assert_same({"rows": [kept, replaced]}, store.load(first).state)
    assert_same({"rows": [kept, late]}, store.load(second).state)
    assert_same({"rows": [kept, replaced, newer]}, store.load(third).state)
    assert len({inode(file_of(path, kept)) for path in (first, second, third)}) == 1
    assert written == [part.key for part in (kept, replaced, late, newer)]


def test_a_missing_segment_is_damage_and_the_one_before_is_used(store):
    part = segment(1)
    save(store, part)
    new = segment(2)
    second = save(store, part, new)
    file_of(second, new).unlink()
    loaded = store.load_newest()
    assert loaded.damaged == [f"000002: segment-{new.key} is missing"]
    assert_same({"rows": [part]}, loaded.state)


def test_a_key_names_one_thing(store):
    part = segment(1)
    with pytest.raises(ValueError, match=rf"'rows.1' has the segment key '{part.key}' of another part"):
        save(store, part, Segment(part.key, torch.tensor([2])))
    assert not store.directory.exists()


@pytest.mark.parametrize("key", ["", "abc", "../../../../etc/passwd", "A" * 32, "0" * 65, "a/b" * 8, "0" * 32 + "\n"])
def test_keys_are_plain_hex(store, key):
    with pytest.raises(TypeError, match=r"'rows.0' has the segment key .* expected the hex of a uuid4"):
        save(store, Segment(key, torch.ones(1)))
    path = save(store, segment(1))
    entry = {"sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1}
    rewrite_manifest(path, lambda manifest: manifest["files"].update({f"segment-{key}": entry}))
    with pytest.raises(CheckpointError, match=r"is damaged: MANIFEST.json lists 'segment-"):
        store.load(path)
    assert store.entries() == []
    save(store, segment(1))  # and nothing is linked from it


@pytest.mark.parametrize(
    "structure",
    [
        ["segment", "0" * 32, "int64", [1]],
        ["segment", "../state.json", "uint8", [1]],
        ["segment", None, "int64", [1]],
        ["segment", "KEY", "int64", [2]],
        ["segment", "KEY", "save", [1]],
        ["segment", "KEY"],
    ],
)
def test_a_state_that_does_not_fit_its_segments(store, structure):
    part = segment(1)
    path = save(store, part)
    content = json.dumps(structure).replace("KEY", part.key).encode()
    replace_file(path, "state.json", content)
    with pytest.raises(CheckpointError, match="do not fit together"):
        store.load(path)


def test_a_segment_without_files_is_refused():
    with pytest.raises(TypeError, match="'a' is a Segment; only a checkpoint"):
        encode({"a": segment(1)})
    found = {}
    part = segment(1, 2)
    tensors, structure = encode({"a": part}, found)
    assert (tensors, found) == ({}, {part.key: part})
    raw = {part.key: Segment(part.key, part.tensor.view(torch.uint8))}
    assert_same(part, decode(structure, tensors, raw)["a"])
    with pytest.raises(TypeError, match="meta"):
        encode(Segment(uuid4().hex, torch.ones(1, device="meta")), {})


def test_hashes_are_of_the_content_and_not_of_the_keys():
    tensor = torch.arange(4.0)
    one, two = (Segment(uuid4().hex, tensor.clone()) for _ in range(2))
    assert tree_hash({"slots": [one]}) == tree_hash({"slots": [two]}) == tree_hash({"slots": [tensor]})
    assert tree_hash([one]) != tree_hash([Segment(one.key, tensor + 1)])
    assert tree_hash([one]) != tree_hash([Segment(one.key, tensor.double())])
    assert tree_hash([one]) != tree_hash([Segment(one.key, tensor.view(2, 2))])


@pytest.mark.parametrize("call", range(6))
def test_full_disk_at_every_fsync_keeps_what_was_saved(store, monkeypatch, call):
    old, new = segment(1), segment(2)
    save(store, old)
    real, calls = os.fsync, iter(range(100))

    def failing(descriptor):
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(CheckpointError, match="disk full"):
        save(store, old, new)  # tensors, state, the new segment, manifest, directory, then it is published
    monkeypatch.undo()
    loaded = store.load_newest()
    assert loaded.damaged == []
    assert_same({"rows": [old] if call < 5 else [old, new]}, loaded.state)
    save(store, old, new)
    assert_same({"rows": [old, new]}, store.load_newest().state)
    assert not list(store.directory.glob(".tmp-*"))


def test_a_small_disk_holds_many_checkpoints_of_the_same_segments(tmp_path):
    """On 512 kB: 200 kB that are linked ten times, and once more than fits."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a tmpfs")
    try:
        store = CheckpointStore(disk / "checkpoints", keep_last=10)
        kept = segment(*range(25_000))
        for number in range(10):
            save(store, kept, segment(number))
        with pytest.raises(CheckpointError, match="disk full"):
            save(store, kept, segment(*range(50_000)))
        assert_same(kept, store.load_newest().state["rows"][0])
        assert not list(store.directory.glob(".tmp-*"))
        assert len(store.entries()) == 10
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_segments_of_a_gpu_are_fetched_only_when_they_are_new(store, written):
    part = Segment(uuid4().hex, torch.arange(LARGE, device="cuda"))
    save(store, part)
    save(store, part)
    assert written == [part.key]
    assert_same(part.tensor.cpu(), store.load_newest().state["rows"][0].tensor)


@pytest.mark.bench
def test_save_time_of_a_large_buffer(tmp_path):
    """Limits are those of the whole: 1 GB with 24 MB of it new in 0.3 s. Here a quarter of both."""
    import time

    slots = [Segment(uuid4().hex, torch.randint(2**60, (1 << 19,))) for _ in range(64)]  # 4 MB each
    store, times = CheckpointStore(tmp_path), []
    for number in range(6):
        new = [Segment(uuid4().hex, slots[index].tensor + number) for index in range(2)]
        slots[number * 2 : number * 2 + 2] = new
        start = time.perf_counter()
        save(store, *slots)
        times.append(time.perf_counter() - start)
    print(f"256 MB: first save {times[0]:.2f} s, with 8 MB new {sorted(times[1:])[2] * 1e3:.0f} ms")
    assert sorted(times[1:])[2] < 0.3
