"""A user's own experiment and plugin, so that these tests do not depend on the packaged algorithms."""

from pathlib import Path

PLUGIN = str(Path(__file__).parent / "tiny_plugin.py")
EXPERIMENT = """\
# @package _global_
# The smallest experiment.
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
  total_timesteps: 256
  checkpoint_frequency: 64
  phases:
    - {name: train, duration_steps: "${training.total_timesteps}", workflow_hooks: [{collect: 8}, update_policy]}
logging: {terminal: false, tensorboard: false, every_steps: 64}
"""


def write_tree(folder: Path) -> Path:
    """Write the config tree and return it."""
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "tiny.yaml").write_text(EXPERIMENT)
    return folder
