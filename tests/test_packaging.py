"""The wheel is whole: built from a copy of the source and installed elsewhere, `lab train` runs from it alone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN_FILES = (
    "config.yaml",
    "manifest.json",
    "metrics.jsonl",
    "perf.jsonl",
    "events.jsonl",
    "metrics.json",
    "heartbeat",
    "checkpoints/latest",
    "code/source.zip",
    "media",
    "tb",
)


def run(*command, cwd, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LAB_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=environment | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy, so that nothing an earlier build left behind gets into the wheel."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist")
    run(sys.executable, "-m", "pip", "wheel", *options, ".", cwd=source)
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """Return a directory that holds the installed wheel and nothing else; what it depends on comes from outside."""
    directory = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(directory))
    run(sys.executable, "-m", "pip", "install", *options, str(wheel), cwd=directory)
    return directory


def test_the_wheel_holds_code_configs_types_and_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    source = ROOT / "src"
    files = [
        path
        for pattern in ("*.py", "*.pyi", "*.yaml", "py.typed", "data/**/*.*")
        for path in (source / "rl_lab").rglob(pattern)
    ]
    files += (source / "rlrepo").glob("*.py")  # a name of the mono-repo's, see docs/coming_from.md
    assert {path.relative_to(source).as_posix() for path in files} == {
        name for name in names if "dist-info" not in name
    }
    assert "lab = rl_lab.cli.entry:main" in entry_points
    assert any(name.endswith("/LICENSE") for name in names)


def test_lab_train_runs_outside_the_source_tree(site, tmp_path):
    where = "import rl_lab, rl_lab.config; print(rl_lab.__file__, rl_lab.config.__file__, sep='\\n')"
    for path in run(sys.executable, "-P", "-c", where, cwd=tmp_path, PYTHONPATH=str(site)).splitlines():
        assert Path(path).is_relative_to(site), path
    lab = str(site / "bin" / "lab")
    output = run(lab, "train", "+experiment=ppo_cartpole", "budget=tiny", cwd=tmp_path, PYTHONPATH=str(site))
    (directory,) = (tmp_path / "experiments").iterdir()
    assert directory.name in output.replace("\n", "")
    assert (directory / "status").read_text() == "done\n"
    assert [name for name in RUN_FILES if not (directory / name).exists()] == []
