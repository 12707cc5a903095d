import pytest
import torch

from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
from tests.config.tiny import PLUGIN, write_tree


@pytest.fixture(autouse=True)
def torch_settings():
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def config_dir(tmp_path):
    return write_tree(tmp_path / "conf")


@pytest.fixture
def targets():
    return Targets(AllowList(load_plugins([PLUGIN])))


@pytest.fixture
def composed(config_dir):
    def make(*overrides):
        return compose(["+experiment=tiny", *overrides], config_dir)

    return make


@pytest.fixture
def validated(composed, targets):
    def make(*overrides):
        return validate(resolve(composed(*overrides)), targets)

    return make
