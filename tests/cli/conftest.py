import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from tests.config.tiny import PLUGIN, write_tree


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Every command runs in an empty directory that holds the user's config tree."""
    write_tree(tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    for variable in ("LAB_EXPERIMENTS", "LAB_GCE_PROJECT", "LAB_EC2_IMAGE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LAB_PLUGINS", PLUGIN)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield tmp_path
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def lab():
    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def train(lab):
    def run(*arguments):
        return lab("train", "+experiment=tiny", "--config-dir", "conf", *arguments)

    return run


@pytest.fixture
def fails():
    """Check that a command ended with this exit code and one line on stderr, and return the line."""

    def check(result, code):
        assert result.exit_code == code, result.stderr
        (line,) = result.stderr.strip().splitlines()
        assert "Traceback" not in result.stderr
        return line

    return check
