import pytest

from tests.config.tiny import write_tree

SWEEP = """\
base_config: conf/experiment/tiny.yaml
sweep:
  algorithm.gamma: [0.8, 0.9, 0.95]
  optimizers.policy.lr: {log_uniform: [1e-4, 1e-2]}
  algorithm.width: {expression: "8 * environment.num_envs"}
parallel_jobs: 2
overrides: [training.total_timesteps=768, training.checkpoint_frequency=64,
            buffers.rollout._target_=rl_lab.buffers.rollout.RolloutBuffer]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty directory with the user's config tree and a sweep of three trials."""
    write_tree(tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAB_EXPERIMENTS", raising=False)
    (tmp_path / "three.yaml").write_text(SWEEP)
    return tmp_path
