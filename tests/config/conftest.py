"""A user's own config tree and plugin, so that these tests do not depend on the packaged algorithms."""

from pathlib import Path

import pytest

from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.targets import Targets

PLUGIN = Path(__file__).parent / "tiny_plugin.py"
EXPERIMENT = """\
# @package _global_
experiment: {name: tiny}
environment: {_target_: rl_lab.environments.cartpole.CartPole, num_envs: 4}
workflow: {_target_: tiny_plugin.TinyWorkflow}
algorithm: {gamma: 0.9}
components:
  actor:
    _target_: torch.nn.Linear
    in_features: ${_dims.observation}
    out_features: ${_dims.action}
  critic: null
buffers: {rollout: {_target_: tiny_plugin.TinyBuffer}}
optimizers: {policy: {_target_: torch.optim.Adam, _partial_: true, lr: 3e-4}}
training:
  total_timesteps: 1e3
  phases:
    - {name: train, duration_steps: "${training.total_timesteps}", workflow_hooks: [{collect: 32}, update_policy]}
"""


@pytest.fixture
def config_dir(tmp_path):
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(EXPERIMENT)
    return folder.parent


@pytest.fixture
def targets():
    return Targets(AllowList(load_plugins([str(PLUGIN)])))
