import os
import shutil

import pytest
import torch

from rl_lab.config import memory
from rl_lab.config.memory import capacity_key, check_room, human
from rl_lab.core import ConfigError, Footprint
from tests.config.tiny_plugin import TinyBuffer

CPU = torch.device("cpu")


class Taking(TinyBuffer):
    def __init__(self, *footprints):
        super().__init__()
        self.footprint = lambda: footprints


def taking(capacity, step_bytes, device=CPU, is_on_disk=False):
    return Taking(Footprint(capacity * step_bytes, capacity, device, is_on_disk))


def check(buffers, root, run=None):
    return check_room(buffers, {}, root, run)


@pytest.fixture
def free(monkeypatch):
    """Let the machine have so many free bytes, and a GPU as many beside what torch keeps."""

    def have(num_bytes):
        monkeypatch.setattr(memory, "free_host_memory", lambda: num_bytes)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (num_bytes - 100, 10**12))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 150)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: 50)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    return have


def test_a_line_for_each_buffer_that_knows_its_size(tmp_path, free):
    free(10**9)
    buffers = {"replay": taking(10_000, 336), "rollout": TinyBuffer(), "demos": taking(3, 7, is_on_disk=True)}
    assert check(buffers, tmp_path) == [
        "buffer replay: 10,000 steps of 336 bytes, 3.4 MB on cpu when full, without what act adds",
        "buffer demos: 3 steps of 7 bytes, 21 bytes and as much again in checkpoints on disk when full, "
        "without what act adds",
    ]


def test_a_buffer_in_several_places_is_counted_in_each(tmp_path, free):
    free(1000)
    rows, numbers = Footprint(8000, 100, CPU, is_on_disk=True), Footprint(400, 100, CPU)
    kept = Footprint(50, 10, CPU, part="parts.kept")
    buffers = {"all": Taking(rows, numbers, numbers._replace(num_bytes=200), kept)}
    assert check(buffers, tmp_path) == [
        "buffer all: 100 steps of 80 bytes, 8.0 kB and as much again in checkpoints on disk when full, "
        "without what act adds",
        "buffer all: 100 steps of 6 bytes, 600 bytes on cpu when full, without what act adds",
        "buffer all.parts.kept: 10 steps of 5 bytes, 50 bytes on cpu when full, without what act adds",
    ]
    free(500)
    nodes = {"all": {"capacity": 100, "parts": {"kept": {"into": {"capacity": 10}}}}}
    with pytest.raises(ConfigError, match=r"beside 50 bytes .* free on cpu; at most buffers.all.capacity=70$"):
        check_room(buffers, nodes, tmp_path)  # 475 - 50 of 600 bytes
    free(10)
    with pytest.raises(ConfigError, match=r"at most buffers.all.capacity=1, buffers.all.parts.kept.into.capacity=0$"):
        check_room(buffers, nodes, tmp_path)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0"])
def test_what_cannot_fit_is_refused_with_what_does(tmp_path, free, device):
    free(100_000)
    place = "cpu" if device == "cpu" else "cuda:0"
    with pytest.raises(ConfigError) as caught:
        check({"replay": taking(5000, 28, torch.device(device))}, tmp_path)
    assert str(caught.value) == (
        "buffers.replay.capacity: 5,000 steps of 28 bytes, 140.0 kB, does not fit into the 100.0 kB that are free on "
        f"{place}; at most buffers.replay.capacity=3392"
    )
    assert 3392 * 28 <= 95_000 < 3393 * 28
    assert check({"replay": taking(3392, 28, torch.device(device))}, tmp_path)
    assert check({"replay": taking(100_000, 1, torch.device(device))}, tmp_path)  # to the last byte


def test_buffers_in_one_place_are_added_up(tmp_path, free):
    free(1000)
    with pytest.raises(ConfigError) as caught:
        check({"small": taking(40, 10), "large": taking(90, 8)}, tmp_path)
    assert str(caught.value).startswith("buffers.large.capacity: 90 steps of 8 bytes, 720 bytes, does not fit beside ")
    assert "beside 400 bytes of other buffers into the 1.0 kB that are free on cpu" in str(caught.value)
    assert str(caught.value).endswith("at most buffers.large.capacity=68")  # (950 - 400) / 8
    check({"small": taking(40, 10), "large": taking(68, 8)}, tmp_path)
    check({"small": taking(100, 10), "large": taking(100, 10, torch.device("cuda:0"))}, tmp_path)


def test_when_none_can_yield_alone_all_become_smaller(tmp_path, free):
    free(1000)
    with pytest.raises(ConfigError) as caught:
        check({"a": taking(100, 20), "b": taking(400, 10)}, tmp_path)
    line = str(caught.value)
    assert "buffers.a.capacity: 100 steps of 20 bytes" in line
    assert "buffers.b.capacity: 400 steps of 10 bytes" in line
    assert line.endswith("at most buffers.a.capacity=15, buffers.b.capacity=63")  # 950 of 6000 bytes each
    assert "\n" not in line
    check({"a": taking(15, 20), "b": taking(63, 10)}, tmp_path)


def test_files_count_against_the_disk_and_those_that_are_there_already_do_not(tmp_path, free, monkeypatch):
    free(0)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda place: asked.append(place) or usage)
    buffers = {"disk": taking(75, 10, is_on_disk=True)}
    with pytest.raises(ConfigError, match=r"free on disk; at most buffers.disk.capacity=47$"):  # twice 470 bytes
        check(buffers, tmp_path / "not" / "yet")
    assert asked == [tmp_path]
    (tmp_path / "buffers" / "disk").mkdir(parents=True)
    rows = tmp_path / "buffers" / "disk" / "rows"
    rows.touch()
    os.truncate(rows, 10_000)  # a hole: nothing of it is on the disk yet
    with pytest.raises(ConfigError):
        check(buffers, tmp_path, tmp_path)
    rows.write_bytes(b"x" * 250)
    with pytest.raises(ConfigError):
        check(buffers, tmp_path, tmp_path)
    for number in (1, 2):
        (tmp_path / "checkpoints" / str(number)).mkdir(parents=True)
    (tmp_path / "checkpoints" / "1" / "state.json").write_bytes(b"x" * 900)
    segment = tmp_path / "checkpoints" / "1" / "segment-a"
    segment.write_bytes(b"x" * 150)
    os.link(segment, tmp_path / "checkpoints" / "2" / "segment-a")
    with pytest.raises(ConfigError):
        check(buffers, tmp_path, tmp_path)  # 1000 + 250 + 150 for 1500: links are one file
    segment.write_bytes(b"x" * 250)
    check(buffers, tmp_path, tmp_path)
    with pytest.raises(ConfigError):
        check(buffers, tmp_path)


def test_what_checkpoints_do_not_hold_is_on_disk_once(tmp_path, free, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(2000, 1000, 1000))
    data = Footprint(1000, 10, CPU, is_on_disk=True, is_in_checkpoints=False)
    assert check({"demos": Taking(data)}, tmp_path) == [
        "buffer demos: 10 steps of 100 bytes, 1.0 kB on disk when full, without what act adds"
    ]
    with pytest.raises(ConfigError, match=r"1.0 kB and as much again in checkpoints, does not fit .*capacity=4$"):
        check({"demos": Taking(data._replace(is_in_checkpoints=True))}, tmp_path)


def test_a_place_that_nobody_knows_is_not_judged(tmp_path, free):
    free(None)
    assert check({"replay": taking(10**9, 10**9), "other": taking(1, 1, torch.device("meta"))}, tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_says_what_is_free(tmp_path):
    total = torch.cuda.mem_get_info()[1]
    with pytest.raises(ConfigError, match="free on cuda:0; at most buffers.replay.capacity="):
        check({"replay": taking(total, 2, torch.device("cuda"))}, tmp_path)
    assert check({"replay": taking(1000, 1, torch.device("cuda"))}, tmp_path)


def test_sizes_for_people():
    sizes = [0, 999, 1000, 1_234_567, 28_224_000_000, 10**18]
    assert [human(size) for size in sizes] == ["0 bytes", "999 bytes", "1.0 kB", "1.2 MB", "28.2 GB", "1000.0 PB"]


def test_the_key_to_change_is_that_of_the_buffer_within(tmp_path, free):
    assert capacity_key("buffers.a", {"_target_": "x"}) == "buffers.a.capacity"  # its default
    assert capacity_key("buffers.a", {"capacity": 3, "into": {"capacity": 4}}) == "buffers.a.capacity"
    parts = [{"capacity": 1}, {"x": 2}, {"capacity": 3}]
    assert capacity_key("buffers.a", {"parts": parts}) == "buffers.a.parts.0.capacity + buffers.a.parts.2.capacity"
    free(1000)
    with pytest.raises(ConfigError, match=r"^buffers.demos.into.capacity: .* at most buffers.demos.into.capacity=95$"):
        check_room({"demos": taking(200, 10)}, {"demos": {"into": {"capacity": 200}}}, tmp_path)
