import json
import os
import re

import pytest

from rl_lab.core import ConfigError, RunDirectoryError
from rl_lab.tracking.run_directory import RunDirectory


def test_create(tmp_path):
    run = RunDirectory.create(tmp_path / "experiments", "ppo_cartpole", 3)
    assert re.fullmatch(r"ppo_cartpole_\d{8}-\d{6}_s3_[0-9a-f]{6}", run.path.name)
    assert run.path.parent == tmp_path / "experiments"
    assert sorted(os.listdir(run.path)) == ["checkpoints", "code", "manifest.json", "media", "tb"]
    manifest = run.read_manifest()
    assert (manifest["name"], manifest["seed"], manifest["id"], manifest["schema_version"]) == (
        "ppo_cartpole",
        3,
        run.id,
        1,
    )
    again = RunDirectory.open(str(run.path))
    assert (again.path, again.id) == (run.path, run.id)


def test_small_files(run):
    run.write_text("config.yaml", "a: 1\n")
    run.write_manifest({"device": "cpu"})
    run.write_manifest({"device": "cuda"})
    assert run.read_config() == "a: 1\n"
    assert run.read_manifest()["device"] == "cuda"
    assert run.read_manifest()["seed"] == 7
    assert run.read_summary() is None
    run.write_summary({"last": {"eval/return": 1.0}})
    assert run.read_summary() == {"last": {"eval/return": 1.0}}


def test_status(run):
    assert run.read_status() == "new"
    run.set_status("running")
    assert run.read_status() == "killed"  # nobody holds the lock
    with run.lock():
        assert run.is_locked()
        assert run.read_status() == "running"
    run.set_status("done")
    assert run.read_status() == "done"


def test_heartbeat_is_throttled_and_never_fails(run, monkeypatch):
    run.heartbeat(step=1)
    first = json.loads(run.heartbeat_file.read_text())
    run.heartbeat(step=2)
    assert json.loads(run.heartbeat_file.read_text()) == first
    assert first["step"] == 1
    run._last_beat = -100.0
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    run.heartbeat(step=3)


def test_exact_path(tmp_path):
    target = tmp_path / "mine"
    run = RunDirectory.create("ignored", "x", 0, exact_path=target)
    assert run.path == target
    with pytest.raises(RunDirectoryError, match=r"mine already holds a run; continue it with `lab resume"):
        RunDirectory.create("ignored", "x", 0, exact_path=target)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert RunDirectory.create("ignored", "x", 0, exact_path=empty).path == empty
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("")
    with pytest.raises(RunDirectoryError, match="foreign is not empty"):
        RunDirectory.create("ignored", "x", 0, exact_path=foreign)
    assert os.listdir(foreign) == ["thesis.tex"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 101])
def test_names_that_are_no_directory_names(tmp_path, name):
    with pytest.raises(ConfigError, match="experiment.name"):
        RunDirectory.create(tmp_path, name, 0)
    assert os.listdir(tmp_path) == []


def test_missing_foreign_and_damaged(tmp_path):
    with pytest.raises(RunDirectoryError, match=f"no run directory at {tmp_path / 'none'}"):
        RunDirectory.open(tmp_path / "none")
    with pytest.raises(RunDirectoryError, match=f"{tmp_path} is not a run directory"):
        RunDirectory.open(tmp_path)
    for content, word in [
        (b"{", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b"\xff\xff", "not text"),
        (b"{}", "no schema_version"),
        (b'{"schema_version": 1}', "no run id"),
        (b'{"schema_version": 9}', "schema_version 9; this lab reads up to 1"),
    ]:
        (tmp_path / "manifest.json").write_bytes(content)
        with pytest.raises(RunDirectoryError, match=word) as caught:
            RunDirectory.open(tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_no_write_permission(tmp_path, monkeypatch, run):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot create run directory .*file/x_.*LAB_EXPERIMENTS"):
        RunDirectory.create(tmp_path / "file", "x", 0)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunDirectoryError, match=f"cannot write {run.status_file}: Permission denied"):
        run.set_status("done")
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RunDirectoryError, match="cannot create run directory .*Permission denied"):
        RunDirectory.create(tmp_path, "x", 0)


def test_config_that_is_not_there(run):
    with pytest.raises(RunDirectoryError, match=f"cannot read {run.config_file}"):
        run.read_config()


def test_the_owner_removes_leftovers(run):
    (run.path / ".tmp-status-dead").write_text("run")
    (run.checkpoints / ".tmp-000001-dead").mkdir()
    with run.lock():
        assert not (run.path / ".tmp-status-dead").exists()
        assert os.listdir(run.checkpoints) == []


def test_a_directory_whose_making_was_interrupted_is_no_run_and_can_be_made_again(tmp_path, monkeypatch):
    target, files = tmp_path / "run", {"config.yaml": "a: 1\n"}

    def die(self, fields):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "write_manifest", die)
        with pytest.raises(KeyboardInterrupt):
            RunDirectory.create(tmp_path, "x", 1, target, files)
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        RunDirectory.open(target)
    (target / "logs").mkdir()  # `lab start` writes what the learner says while it makes its run
    run = RunDirectory.create(tmp_path, "x", 1, target, files)
    assert run.read_config() == "a: 1\n"
