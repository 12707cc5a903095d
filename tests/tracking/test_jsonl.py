import errno
import os

import pytest

from rl_lab.core import CheckpointError, RunDirectoryError
from rl_lab.tracking.jsonl import JsonLines, last_row, read_rows


@pytest.fixture
def file(tmp_path):
    file = JsonLines(tmp_path / "x.jsonl")
    yield file
    file.close_quietly()


def test_rows_are_visible_at_once_and_can_be_cut(file):
    assert file.sync() == 0
    file.open(0)
    file.append({"a": 1})
    size = file.sync()
    file.append({"b": float("nan")})
    assert file.path.read_bytes() == b'{"a": 1}\n{"b": NaN}\n'
    assert size == 9
    file.open(size)
    file.append({"c": 3})
    file.close()
    assert list(read_rows(file.path)) == [{"a": 1}, {"c": 3}]
    assert not file.is_open


def test_half_a_line_is_cut_off_or_passed_over(file):
    file.path.write_bytes(b'{"a": 1}\n[]\nbad\n{"a": 2}\n{"a": ')
    assert list(read_rows(file.path)) == [{"a": 1}, {"a": 2}]
    assert last_row(file.path) == {"a": 2}
    file.open(None)
    file.append({"a": 3})
    assert file.path.read_bytes() == b'{"a": 1}\n[]\nbad\n{"a": 2}\n{"a": 3}\n'
    file.path.write_bytes(b"no line")
    file.open(None)
    assert file.path.read_bytes() == b""


def test_nothing_there(tmp_path):
    assert list(read_rows(tmp_path / "none")) == []
    assert last_row(tmp_path / "none") is None
    (tmp_path / "empty").touch()
    assert last_row(tmp_path / "empty") is None


def test_shorter_than_the_checkpoint_says(file):
    file.path.write_bytes(b"12345")
    with pytest.raises(CheckpointError, match=r"x.jsonl has 5 bytes, but the checkpoint was made at 9: it was cut"):
        file.open(9)
    assert file.path.read_bytes() == b"12345"
    assert not file.is_open


def test_rows_wait_while_the_disk_is_full(file, monkeypatch):
    file.open(0)
    file.append({"a": 1})
    real, budget = os.write, [4]

    def nearly_full(descriptor, data):
        if not budget[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[: budget[0]])
        budget[0] -= written
        return written

    monkeypatch.setattr(os, "write", nearly_full)
    file.append({"a": 2})
    file.append({"a": 3})
    assert file.path.read_bytes() == b'{"a": 1}\n{"a"'
    with pytest.raises(CheckpointError, match=r"disk full \(14 bytes wait"):
        file.sync()
    monkeypatch.undo()
    assert file.sync() == 27
    assert list(read_rows(file.path)) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_other_faults_of_the_disk(file, tmp_path, monkeypatch):
    with pytest.raises(RunDirectoryError, match="cannot open"):
        JsonLines(tmp_path / "none" / "x").open(0)
    file.open(0)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        file.sync()
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(RunDirectoryError, match="Input/output error"):
        file.append({})
