"""Checkpoints that ranks write together: whole for all of them, or not there at all. Two threads play the ranks."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rl_lab.core import CheckpointError
from rl_lab.core.buffer import Segment
from rl_lab.core.ranks import Ranks
from rl_lab.tracking import checkpoint as module
from rl_lab.tracking.checkpoint import CheckpointStore

KEYS = ["0" * 31 + str(rank) for rank in range(2)]


class ThreadRanks(Ranks):
    """One of two threads."""

    size = 2

    def __init__(self, rank, barrier, said):
        self.rank, self._barrier, self._said = rank, barrier, said

    def gather(self, value):
        self._said[self.rank] = value
        self._barrier.wait(10)
        said = list(self._said)
        self._barrier.wait(10)
        return said


def together(work):
    """Return what both ranks return or raise."""
    barrier, said = threading.Barrier(2), [None, None]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, ThreadRanks(rank, barrier, said)) for rank in range(2)]
        return [future.exception() or future.result() for future in futures]


def save(folder):
    def work(ranks):
        state = {"own": torch.tensor(ranks.rank), "rows": Segment(KEYS[ranks.rank], torch.arange(4) + ranks.rank)}
        return CheckpointStore(folder, keep_last=2, ranks=ranks).save(state, counters={}, phase="p")

    return together(work)


def load(folder):
    return together(lambda ranks: CheckpointStore(folder, ranks=ranks).load_newest())


def test_each_rank_gets_its_own_back(tmp_path):
    for serial in (1, 2, 3):
        assert save(tmp_path) == [tmp_path / f"00000{serial}"] * 2
    loaded = load(tmp_path)
    assert [int(each.state["own"]) for each in loaded] == [0, 1]
    assert [each.state["rows"].tensor[0].item() for each in loaded] == [0, 1]
    assert {each.path.name for each in loaded} == {"000003"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["000002", "000003"]
    files = [tmp_path / serial / "rank_1" / f"segment-{KEYS[1]}" for serial in ("000002", "000003")]
    assert files[0].stat().st_ino == files[1].stat().st_ino  # what did not change is linked


def test_damage_of_one_rank_is_damage_for_all(tmp_path):
    save(tmp_path)
    save(tmp_path)
    (tmp_path / "000002" / "rank_1" / "state.json").write_text("{}")
    loaded = load(tmp_path)
    assert [each.path.name for each in loaded] == ["000001", "000001"]
    assert all("000002: state.json" in each.damaged[0] for each in loaded)
    assert [int(each.state["own"]) for each in loaded] == [0, 1]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_disk_that_refuses_one_rank_leaves_nothing_behind(tmp_path, monkeypatch, failing):
    save(tmp_path)
    write = module.write_files

    def refuse(directory, *args):
        if (directory.name == "rank_1") == bool(failing):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(directory, *args)

    monkeypatch.setattr(module, "write_files", refuse)
    for error in save(tmp_path):
        assert isinstance(error, CheckpointError)
        assert "disk full (No space left on device); the earlier ones are untouched" in str(error)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["000001"]
    assert [int(each.state["own"]) for each in load(tmp_path)] == [0, 1]
