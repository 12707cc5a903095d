import resource
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_TORCH = """
import sys
from rl_lab.cli.main import app
try:
    app(%r)
finally:
    assert "torch" not in sys.modules
"""
COMMANDS = ["train", "resume", "evaluate", "runs", "list", "doctor"]


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_help_is_quick_and_imports_no_torch():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = python("-c", WITHOUT_TORCH % (["--help"],))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5  # of CPU: other jobs do not count


def test_it_is_a_module_too():
    assert python("-m", "rl_lab.cli", "--version").stdout == "0.1.0\n"


def test_the_script_is_lab_train():
    script = Path(__file__).parents[2] / "scripts" / "train.py"
    done = python(str(script), "--help")
    assert done.returncode == 0
    assert "train [OPTIONS]" in done.stdout
    assert "--run-dir" in done.stdout


def test_listing_imports_no_torch():
    done = python("-c", WITHOUT_TORCH % (["list", "experiments"],))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["trian"], ["train", "--nonsense"], ["evaluate", "--episodes", "0"]])
def test_wrong_usage_is_exit_code_2(lab, arguments):
    assert lab(*arguments).exit_code == 2
