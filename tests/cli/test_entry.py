"""`lab runs list` is done without loading the whole command line, and says the same."""

import os
import subprocess
import sys

import pytest
import typer

from rl_lab.cli.entry import read_list
from rl_lab.cli.main import app
from tests.tracking.synthetic import make_run

QUICK = """
import sys
from rl_lab.cli.entry import main
sys.argv = ["lab", *%r]
try:
    main()
finally:
    print("loaded:", *sorted({"typer", "torch", "rich", "pydantic"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture
def root(tmp_path):
    for number in range(3):
        make_run(tmp_path / "runs", f"run_{number}", curve=[(100, float(number)), (200, 2.0 * number)])
    return tmp_path / "runs"


def quick(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-c", QUICK % (list(map(str, arguments)),)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--limit", "2"],
        ["--sort=eval/return", "--reverse", "--columns", "run,eval/return"],
        ["eval/return>1", "status=done,killed,new", "--json"],
        ["run_1"],
    ],
    ids=" ".join,
)
def test_both_ways_say_the_same(root, lab, words):
    assert lab("runs", "list", "--root", root).exit_code == 0  # the index is there from now on
    done = quick("runs", "list", "--root", root, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "loaded:\n"
    assert done.stdout == lab("runs", "list", "--root", root, *words).stdout != ""


def test_the_root_may_come_from_the_environment(root):
    assert "run_2" in quick("runs", "list", LAB_EXPERIMENTS=str(root)).stdout


def test_errors_are_told_by_the_whole_command_line(root, lab, fails):
    for words in (["--sort", "nonsense"], ["nonsense=1"], ["nowhere"]):
        whole = lab("runs", "list", "--root", root, *words)
        done = quick("runs", "list", "--root", root, *words)
        assert done.returncode == whole.exit_code != 0
        assert done.stderr.splitlines()[0] == fails(whole, whole.exit_code)
        assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "show"],
        ["runs"],
        [],
        ["--version"],
        ["runs", "list", "--help"],
        ["runs", "list", "--limit", "-1"],
        ["runs", "list", "--limit", "many"],
        ["runs", "list", "--root"],
        ["runs", "list", "--sort", "--json"],
        ["runs", "list", "--debug"],
        ["runs", "list", "--"],
    ],
    ids=" ".join,
)
def test_what_is_not_plain_is_left_to_the_whole_command_line(words):
    assert read_list(words) is None


def test_every_option_is_known_here_too():
    """One that is added to the command, and not here, would only make it slower; one that is renamed would differ."""
    (command,) = [
        info for info in typer.main.get_command(app).commands["runs"].commands.values() if info.name == "list"
    ]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert options == {"--sort", "--reverse", "--columns", "--limit", "--root", "--json", "--debug"}
    defaults = {parameter.name: parameter.default for parameter in command.params}
    assert read_list(["runs", "list"])["limit"] == defaults["limit"]
