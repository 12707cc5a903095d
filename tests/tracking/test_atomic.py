import errno
import os

import pytest

from rl_lab.core.durable import reason
from rl_lab.tracking.atomic import remove_leftovers, replace_file


def test_replace_file(tmp_path):
    path = tmp_path / "status"
    replace_file(path, "one")
    replace_file(path, b"two", durable=False)
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["status"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_keeps_the_old_content_and_leaves_nothing(tmp_path, monkeypatch, function):
    path = tmp_path / "status"
    replace_file(path, "old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["status"]


def test_leftovers_are_files_directories_and_links(tmp_path):
    (tmp_path / "outside").mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / ".tmp-dir").mkdir()
    (inside / ".tmp-file").write_text("")
    (inside / ".tmp-link").symlink_to(tmp_path / "outside")
    (inside / "kept").write_text("")
    assert sorted(remove_leftovers(inside)) == [".tmp-dir", ".tmp-file", ".tmp-link"]
    assert os.listdir(inside) == ["kept"]
    assert (tmp_path / "outside").is_dir()


def test_reasons():
    assert reason(OSError(errno.ENOSPC, "No space left on device")) == "disk full (No space left on device)"
    assert reason(OSError(errno.EACCES, "Permission denied")) == "Permission denied"
    assert reason(OSError("odd")) == "odd"
