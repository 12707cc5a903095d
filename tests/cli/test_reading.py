import json
import time
from pathlib import Path

import pytest

from rl_lab.cli import checks


@pytest.fixture
def run(train):
    assert train("training.eval_frequency=128", "training.num_eval_episodes=3").exit_code == 0
    (path,) = Path("experiments").glob("*")
    return path


def test_runs_list(run, lab):
    (listed,) = json.loads(lab("runs", "list", "--json").stdout)
    assert (listed["path"], listed["status"], listed["env_steps"]) == (str(run.absolute()), "done", 256)
    table = lab("runs", "list").stdout
    assert run.name[:20] in table.replace("\n", "")
    nothing = lab("runs", "list", "--root", "nowhere")
    assert (nothing.exit_code, nothing.stdout.splitlines()[-1]) == (0, "no runs in nowhere")
    assert lab("runs", "list", "status=failed").stdout.endswith("no runs in experiments that fit\n")


def test_runs_show(run, lab):
    shown = json.loads(lab("runs", "show", run, "--json").stdout)
    assert shown["manifest"]["seed"] == 1
    text = lab("runs", "show").stdout
    for part in ("config_hash", "train/loss", "checkpoint", "gamma: 0.9", "env_steps: 256, updates: "):
        assert part in text
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(shown["run"]["created"])) in text
    assert str(int(shown["run"]["created"])) not in text  # not as seconds since 1970


def test_runs_fingerprint(run, lab):
    lines = lab("runs", "fingerprint").stdout.splitlines()
    names = ["parameters", "optimizers", "counters", "buffers", "rng", "environment", "metrics"]
    assert [line.split()[0] for line in lines] == names
    assert all(len(line.split()[1]) == 64 for line in lines)


@pytest.mark.parametrize("command", ["show", "fingerprint"])
def test_a_missing_run_is_one_line(lab, fails, command):
    assert fails(lab("runs", command, "nowhere"), 1).startswith("error: unknown run in ")


def test_evaluate_reads_only(run, lab, fails):
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    result = json.loads(lab("evaluate", run, "--episodes", "4", "--json").stdout)
    assert result["episodes"] == 4
    assert result["return"] == result["length"]  # CartPole pays 1 a step
    assert json.loads(lab("evaluate", run, "--episodes", "4", "--json").stdout) == result
    assert json.loads(lab("evaluate", "--checkpoint", "best", "--explore", "--json").stdout)["episodes"] == 3
    path = sorted((run / "checkpoints").glob("0*"))[0]
    assert json.loads(lab("evaluate", "--checkpoint", path, "--seed", 5, "--json").stdout)["checkpoint"].endswith(
        path.name
    )
    assert "return_std" in lab("evaluate").stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before
    assert "no checkpoint at" in fails(lab("evaluate", "--checkpoint", "000999"), 1)


def test_best_needs_an_evaluation(train, lab, fails):
    assert train().exit_code == 0
    assert "no checkpoint of" in fails(lab("evaluate", "--checkpoint", "best"), 2)


def test_list(lab, fails):
    listed = json.loads(lab("list", "--config-dir", "conf", "--json").stdout)
    assert set(listed) == {"experiments", "workflows", "environments"}
    assert listed["experiments"]["tiny"] == "The smallest experiment."
    text = lab("list", "experiments", "--config-dir", "conf").stdout
    assert "tiny" in text
    assert "environments:" not in text
    assert "--config-dir nowhere" in fails(lab("list", "--config-dir", "nowhere"), 2)
    assert lab("list", "nonsense").exit_code == 2


def test_doctor_names_the_fix(lab, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such")
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    found = {check["name"]: check for check in json.loads(lab("doctor", "--no-render", "--json").stdout)}
    assert found["torch"]["status"] == "ok"
    assert found["XDG_RUNTIME_DIR"]["fix"].startswith("export XDG_RUNTIME_DIR=")
    assert found["threads"]["fix"].startswith("export OMP_NUM_THREADS=")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert checks.check_runtime_dir().status == checks.check_threads().status == "ok"
    assert "torch" in lab("doctor", "--no-render").stdout


def test_doctor_on_versions_and_disk(lab, monkeypatch):
    monkeypatch.setitem(checks.TESTED, "torch", ("99.0", "100"))
    monkeypatch.setitem(checks.TESTED, "no-such-package-of-test", ("1", "2"))
    monkeypatch.setitem(checks.OPTIONAL, "no-such-option-of-test", ("1", "2"))
    result = lab("doctor", "--no-render")
    assert result.exit_code == 1
    assert "fix: pip install 'torch>=99.0,<100'" in result.stdout
    assert "broken  no-such-package-of-test: not installed" in result.stdout
    assert "ok      no-such-option-of-test: not installed (optional)" in result.stdout
    monkeypatch.setattr(checks, "NEEDED_GIB", 1e9)
    assert checks.check_disk(Path("here/and/there")).status == "warning"
    monkeypatch.setattr(checks.os, "access", lambda *_: False)
    assert checks.check_disk(Path()).status == "broken"


@pytest.mark.parametrize(
    ("backend", "display", "works", "status"),
    [
        ("", "", True, "ok"),
        ("", "", False, "warning"),
        ("osmesa", "", True, "ok"),
        ("glfw", ":0", False, "warning"),
    ],
)
def test_doctor_on_rendering(monkeypatch, backend, display, works, status):
    monkeypatch.setenv("MUJOCO_GL", backend)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setattr(checks, "_renders", lambda _: works)
    monkeypatch.setattr(checks, "_is_installed", lambda _: True)
    assert checks.check_rendering().status == status
    monkeypatch.setattr(checks, "_is_installed", lambda _: False)
    assert "not installed" in checks.check_rendering().detail
