import hashlib
import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

import rl_lab
from rl_lab.core.errors import RunDirectoryError, UsageError
from rl_lab.tracking import code_snapshot
from rl_lab.tracking.code_snapshot import changed_sources, git_commit, lay_out, write_code_snapshot


def git(folder, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    result = subprocess.run(["git", *identity, "-C", folder, *arguments], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def photograph(folder):
    """Return names, contents and times of all files, .git included."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A user's repository that holds a copy of a package, with a change and an untracked file."""
    folder = tmp_path / "user"
    package = folder / "src" / "rl_lab"
    package.mkdir(parents=True)
    git(folder, "init", "-q")
    (package / "__init__.py").write_text("version = 1\n")
    (package / "configs").mkdir()
    (package / "configs" / "a.yaml").write_text("a: 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    (package / "__init__.py").write_text("version = 2\n")
    (package / "data.bin").write_bytes(b"\0" * 10)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.py").write_text("")
    (folder / "notes.txt").write_text("untracked")
    monkeypatch.setattr(rl_lab, "__file__", str(package / "__init__.py"))
    os.utime(package / "__init__.py")  # the index is stale: a careless `git diff` would refresh it
    return folder


def test_snapshot_of_a_repository_leaves_it_untouched(repository, tmp_path):
    before = photograph(repository)
    plugin = tmp_path / "my_plugin.py"
    plugin.write_text("x = 1\n")
    folder = tmp_path / "other_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text("y = 1\n")
    write_code_snapshot(tmp_path / "code", [plugin, folder, str(plugin)])
    assert photograph(repository) == before
    assert git(repository, "status", "--porcelain").splitlines()[0].endswith("__init__.py")
    assert (tmp_path / "code" / "commit").read_text().strip() == git(repository, "rev-parse", "HEAD")
    assert "+version = 2" in (tmp_path / "code" / "diff.patch").read_text()
    with zipfile.ZipFile(tmp_path / "code" / "source.zip") as archive:
        assert archive.namelist() == [
            "rl_lab/__init__.py",
            "rl_lab/configs/a.yaml",
            "my_plugin.py",
            "other_plugin/__init__.py",
        ]
        assert archive.read("rl_lab/__init__.py") == b"version = 2\n"


def test_the_same_sources_give_the_same_bytes(repository, tmp_path):
    write_code_snapshot(tmp_path / "a")
    for path in repository.rglob("*.py"):
        os.utime(path, (1, 1))
    write_code_snapshot(tmp_path / "b")
    assert (tmp_path / "a" / "source.zip").read_bytes() == (tmp_path / "b" / "source.zip").read_bytes()


def test_the_patch_rebuilds_the_tree(repository, tmp_path):
    write_code_snapshot(tmp_path / "code")
    git(tmp_path, "clone", "-q", str(repository), "clone")
    git(tmp_path / "clone", "apply", str(tmp_path / "code" / "diff.patch"))
    assert (tmp_path / "clone" / "src" / "rl_lab" / "__init__.py").read_text() == "version = 2\n"


def test_installed_package_uses_the_repository_of_the_current_directory(repository, tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "rl_lab"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr(rl_lab, "__file__", str(installed / "__init__.py"))
    monkeypatch.chdir(repository)
    assert git_commit() == git(repository, "rev-parse", "HEAD")


def test_without_git_and_without_commits(repository, tmp_path, monkeypatch):
    git(repository, "update-ref", "-d", "HEAD")
    assert git_commit() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    write_code_snapshot(tmp_path / "code")
    assert (tmp_path / "code" / "commit").read_text() == "unknown\n"
    assert (tmp_path / "code" / "diff.patch").read_bytes() == b""
    assert zipfile.is_zipfile(tmp_path / "code" / "source.zip")


def test_a_huge_diff_is_left_out(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(code_snapshot, "_MAX_DIFF_BYTES", 10)
    write_code_snapshot(tmp_path / "code")
    assert (tmp_path / "code" / "diff.patch").read_text().startswith("# left out: ")


def test_no_program_of_the_repository_runs(repository, tmp_path):
    witness = tmp_path / "ran"
    git(repository, "config", "diff.external", f"touch {witness};")
    git(repository, "config", "core.fsmonitor", f"touch {witness};")
    write_code_snapshot(tmp_path / "code")
    assert not witness.exists()
    assert "+version = 2" in (tmp_path / "code" / "diff.patch").read_text()


def test_the_real_package(tmp_path):
    write_code_snapshot(tmp_path / "code")
    with zipfile.ZipFile(io.BytesIO((tmp_path / "code" / "source.zip").read_bytes())) as archive:
        names = archive.namelist()
    assert "rl_lab/tracking/code_snapshot.py" in names
    assert all(Path(name).suffix in (".py", ".yaml", ".yml") for name in names)


def test_what_changed_since_a_snapshot(repository, tmp_path):
    plugin = tmp_path / "my_plugin.py"
    plugin.write_text("x = 1\n")
    write_code_snapshot(tmp_path / "code", [plugin])
    assert changed_sources(tmp_path / "code", [plugin]) == []
    assert changed_sources(tmp_path / "code") == []  # a plugin that is not declared now is not compared
    package = repository / "src" / "rl_lab"
    (package / "__init__.py").write_text("version = 3\n")
    (package / "new.py").write_text("")
    (package / "configs" / "a.yaml").unlink()
    (package / "data.bin").write_bytes(b"other")  # no source
    plugin.write_text("x = 2\n")
    names = ["my_plugin.py", "rl_lab/__init__.py", "rl_lab/configs/a.yaml", "rl_lab/new.py"]
    assert changed_sources(tmp_path / "code", [plugin]) == names


def test_a_snapshot_is_laid_out_whole_or_not_at_all(repository, tmp_path, monkeypatch):
    write_code_snapshot(tmp_path / "code")
    lay_out(tmp_path / "code", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "rl_lab" / "__init__.py").read_text() == "version = 2\n"
    assert "version = 2" in (tmp_path / "a" / "b" / "diff.patch").read_text()
    with pytest.raises(UsageError, match="is not an empty directory"):
        lay_out(tmp_path / "code", tmp_path / "a" / "b")
    with pytest.raises(UsageError, match="is not an empty directory"):
        lay_out(tmp_path / "code", tmp_path / "code" / "commit")

    def fail(self, path):
        (path / "half.py").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", fail)
    with pytest.raises(OSError, match="No space"):
        lay_out(tmp_path / "code", tmp_path / "c" / "d")
    assert list((tmp_path / "c").iterdir()) == []
    (tmp_path / "code" / "source.zip").write_bytes(b"no zip")
    with pytest.raises(RunDirectoryError, match="no code snapshot in"):
        lay_out(tmp_path / "code", tmp_path / "e")
