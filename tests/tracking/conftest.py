import pytest

from rl_lab.tracking.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "cartpole", 7)
