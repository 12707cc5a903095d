"""The installed code, the code of a run, and the user's own files, which no command on a run touches."""

import hashlib
import json
import os
import signal
import time
import warnings
import zipfile
from pathlib import Path

import pytest

import rl_lab
from rl_lab.cli.code_state import own_plugin
from rl_lab.tracking.run_directory import RunDirectory

OWN = """
import json, os, pathlib, signal, sys, time
import rl_lab

def main():
    if "wait" in sys.argv:
        pathlib.Path("pid").write_text(str(os.getpid()))
        time.sleep(60)
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
    data = pathlib.Path(rl_lab.__file__).parent / "data"
    said = {"argv": sys.argv, "home": str(data.parent), "data": sorted(each.name for each in data.iterdir())}
    print(json.dumps({**said, "plugins": os.environ["LAB_PLUGINS"]}))
    sys.exit(7)
"""


@pytest.fixture
def run(train, tmp_path, monkeypatch):
    assert train("training.total_timesteps=64").exit_code == 0
    (path,) = Path("experiments").glob("*")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return path


def replace_code(run, main):
    """Give a run a code of its own."""
    with zipfile.ZipFile(run / "code" / "source.zip", "w") as archive:
        archive.writestr("rl_lab/__init__.py", "version = 'own'\n")
        archive.writestr("rl_lab/cli/__init__.py", "")
        archive.writestr("rl_lab/cli/main.py", main)
        archive.writestr("tiny_plugin.py", "")


def photograph(*folders):
    files = [each for folder in folders for each in sorted(Path(folder).rglob("*")) if "__pycache__" not in each.parts]
    return {str(each): each.is_file() and hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def test_the_run_s_own_code_runs_elsewhere(run, lab, capfd):
    replace_code(run, OWN)
    before = photograph(".", Path(rl_lab.__file__).parent)
    result = lab("evaluate", run, "--episodes", "3", "--explore", "--plugin", os.environ["LAB_PLUGINS"], "--run-code")
    assert result.exit_code == 7  # that of the run's own command
    said = json.loads(capfd.readouterr().out)
    assert said["argv"][:5] == ["lab", "evaluate", "--episodes", "3", "--checkpoint"]
    assert said["argv"][-2:] == ["--", str(run.absolute())]
    assert "--explore" in said["argv"]
    assert "--run-code" not in said["argv"]
    home = Path(said["home"])
    assert not home.exists()  # it was temporary
    assert home.parent.parent.parent == Path("tmp").absolute()
    assert said["plugins"] == str(home.parent / "tiny_plugin.py") == said["argv"][said["argv"].index("--plugin") + 1]
    assert said["data"] == sorted(each.name for each in (Path(rl_lab.__file__).parent / "data").iterdir())
    assert photograph(".", Path(rl_lab.__file__).parent) == before
    assert lab("resume", run, "die=1", "die", "--run-code").exit_code == 143


def test_the_run_s_own_code_is_told_which_run_was_found(run, lab, capfd):
    """A run that is newer by then is another one: what was the newest is named by its path."""
    replace_code(run, OWN)
    for words in (["evaluate"], ["play"], ["export"], ["resume"], ["resume", "logging.csv=true"], ["resume", run.name]):
        assert lab(*words, "--run-code").exit_code == 7
        named = json.loads(capfd.readouterr().out)["argv"]
        overrides = [word for word in words if "=" in word]
        assert named[named.index("--") + 1 :] == [str(run.absolute()), *overrides]


def test_a_kill_in_the_middle_leaves_nothing_behind(run, lab):
    replace_code(run, OWN)
    before = photograph(".")
    process = forked(lambda: lab("resume", run, "wait", "--run-code"))
    assert wait_for(lambda: Path("pid").exists() and Path("pid").read_text())
    assert len(list(Path("tmp").iterdir())) == 1
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    child = int(Path("pid").read_text())
    assert wait_for(lambda: not list(Path("tmp").iterdir()))
    status = Path("/proc", str(child), "status")
    assert not status.exists() or "State:\tZ" in status.read_text()  # nobody may be there to bury it
    Path("pid").unlink()
    assert photograph(".") == before


def test_a_signal_goes_on_to_the_run_s_own_code(run, lab):
    replace_code(run, OWN)
    process = forked(lambda: lab("resume", run, "wait", "--run-code").exit_code)
    assert wait_for(lambda: Path("pid").exists() and Path("pid").read_text())
    os.kill(process, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 143
    assert not list(Path("tmp").iterdir())


def forked(function):
    """Return the id of a process that calls a function and ends with what it returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads; nothing here uses them
        process = os.fork()
    if process == 0:
        try:
            os._exit(function())
        finally:
            os._exit(1)
    return process


def wait_for(condition):
    patience = time.monotonic() + 30
    while time.monotonic() < patience:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_other_code_is_told_in_one_line(run, lab):
    result = lab("evaluate", run)
    assert (result.exit_code, result.stderr) == (0, "")
    replace_code(run, OWN)
    assert "note: the installed code differs" in lab("resume", run).stderr
    (line,) = lab("evaluate", run).stderr.splitlines()
    assert line.startswith("note: the installed code differs from the run's in ")
    assert line.endswith(" more; --run-code uses the code of the run")
    (run / "code" / "source.zip").unlink()
    (line,) = lab("evaluate", run).stderr.splitlines()
    assert line.startswith(f"note: no code snapshot in {run.absolute() / 'code'}")
    assert "error: no code snapshot in" in lab("evaluate", run, "--run-code").stderr


def test_restore_lays_the_code_out(run, lab, fails):
    result = lab("runs", "restore", run.name, "there")
    assert (result.exit_code, result.stdout) == (0, f"code: {Path('there').absolute()}\n")
    main = Path(rl_lab.__file__).parent / "cli" / "main.py"
    assert Path("there", "rl_lab", "cli", "main.py").read_bytes() == main.read_bytes()
    assert Path("there", "tiny_plugin.py").is_file()
    assert Path("there", "commit").read_text() == (run / "code" / "commit").read_text()
    before = photograph("there")
    assert "is not an empty directory" in fails(lab("runs", "restore", run, "there"), 2)
    assert photograph("there") == before
    Path("empty").mkdir()
    assert lab("runs", "restore", run, "empty").exit_code == 0
    assert photograph("empty").keys() == {name.replace("there", "empty", 1) for name in before}
    assert not list(Path().glob(".tmp-*"))


def test_a_new_run_from_the_config_of_another(run, train, lab):
    warm = lab("resume", run, "--mode", "warm_start", "algorithm.gamma=0.5", "--json")
    other = Path(json.loads(warm.stdout)["run"])
    result = lab("train", "--from-run", other.name, "--seed", "3,4", "training.total_timesteps=32", "--json")
    assert result.exit_code == 0, result.stderr
    for found, seed in zip(json.loads(result.stdout), (3, 4), strict=True):
        fresh = RunDirectory.open(found["run"])
        assert fresh.path not in (run.absolute(), other)
        assert fresh.read_manifest()["parent"] is None  # no weights
        assert "gamma: 0.5" in fresh.read_config()
        assert found["position"]["step"] == 32
        assert fresh.read_manifest()["seed"] == seed
    assert "gamma: 0.5" in lab("train", "--from-run", other, "--cfg", "job", "--package", "algorithm").stdout
    assert "unknown run" in lab("train", "--from-run", "nowhere").stderr


def test_a_new_run_does_not_begin_with_weights(run, train, lab):
    assert train(f"training.resume_path={run}", "training.resume_mode=warm_start", "--run-dir", "warm").exit_code == 0
    result = lab("train", "--from-run", "warm", "--run-dir", "fresh", "training.total_timesteps=32", "--json")
    assert result.exit_code == 0, result.stderr
    assert RunDirectory.open("warm").read_manifest()["parent"] is not None
    assert RunDirectory.open("fresh").read_manifest()["parent"] is None


def test_a_plugin_that_is_not_in_the_snapshot_stays_what_it_is(tmp_path):
    (tmp_path / "mine.py").touch()
    assert own_plugin("elsewhere/mine.py", tmp_path) == str(tmp_path / "mine.py")
    assert own_plugin("elsewhere/other.py", tmp_path) == "elsewhere/other.py"
