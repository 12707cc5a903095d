import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.cli import listing

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


def test_listing_shows_the_first_sentence_of_a_file_however_many_lines_it_has(tmp_path, lab):
    (tmp_path / "mine").mkdir()
    for name, text in {
        "one": "# @package _global_\n# A task, e.g. Mine-v0, on\n# two lines. And more.\nname: one\n",
        "two": "# @package _global_\n\nname: two # no comment of the file\n",
    }.items():
        (tmp_path / "mine" / "experiment").mkdir(exist_ok=True)
        (tmp_path / "mine" / "experiment" / f"{name}.yaml").write_text(text)
    listed = json.loads(lab("list", "experiments", "--config-dir", tmp_path / "mine", "--json").stdout)["experiments"]
    assert (listed["one"], listed["two"]) == ("A task, e.g. Mine-v0, on two lines.", "")
    assert all(not text or text[-1] in ".:" for text in listed.values())


def test_on_a_terminal_what_is_listed_stands_below_itself():
    text = "a word and another and a third and a fourth"
    assert listing._entry("  name  ", text, None) == f"  name  {text}"
    assert listing._entry("  name  ", text, 38) == "  name  a word and another and a third\n        and a fourth"
    assert listing._entry("  name  ", text, 37) == f"  name  {text}"


@pytest.mark.parametrize(
    ("words", "wrong", "command"),
    [
        ("trian", "'train'", "lab"),
        ("--nonsense", "--nonsense", "lab"),
        ("train --nonsense", "--nonsense", "lab train"),
        ("runs tag", "issing argument", "lab runs tag"),
        ("evaluate --episodes 0", "--episodes", "lab evaluate"),
        ("tune f.yaml --trials 0", "--trials", "lab tune"),
        ("list everything", "'everything' is not one of 'experiments', 'workflows', 'environments'", "lab list"),
        ("runs verify --steps 0", "--steps", "lab runs verify"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(lab, fails, words, wrong, command):
    line = fails(lab(*words.split()), 2)
    assert line.startswith("error: ")
    assert wrong in line
    assert line.endswith(f" (see {command} --help)")
    assert "Value error" not in line


def test_a_group_without_a_command_is_its_help(lab):
    for words, name in ([], "train"), (["runs"], "verify"):
        result = lab(*words)
        assert result.exit_code in (0, 2)
        assert name in result.output
        assert "error" not in result.stderr
