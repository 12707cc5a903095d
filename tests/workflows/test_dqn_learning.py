"""DQN learns the smallest tasks in seconds, remembers with a memory, and goes on exactly after a stop."""

import pytest
import torch

from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.components.action_values import ValueRange
from rl_lab.components.mlp import MLP
from rl_lab.components.recurrent import GRU
from rl_lab.environments.identity import Identity
from rl_lab.environments.memory import Memory
from rl_lab.workflows.dqn import DQN
from tests.workflows.off_policy import resumes_exactly, run_packaged, score, start, train

torch.set_num_threads(1)
ATOMS = ValueRange(-2.0, 12.0, 29)  # of an episode of ten steps: at most 9.6
RAINBOW = {"double": True, "dueling": True, "noisy": True, "distribution": "categorical", "value_range": ATOMS}


def make_dqn(env, hidden=(32,), *, lr=5e-3, components=None, **options):
    spec = env.spec
    dim = (spec.observation["observation"] if isinstance(spec.observation, dict) else spec.observation).shape[0]
    made = components or (lambda: {"critic": MLP(dim, hidden, "relu")})
    return start(DQN(**options), spec, made, lr=lr, names=("critic",), num_envs=env.num_envs)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ({"sizes": (4,)}, {}),
        ({"sizes": (6,), "masked": True}, {"double": True}),
        ({"sizes": (4,)}, {"distribution": "quantile", "num_quantiles": 8}),
        ({"sizes": (4,)}, {"munchausen": True}),
        ({"sizes": (6,), "masked": True}, RAINBOW),
    ],
    ids=["plain", "masked", "quantile", "munchausen", "masked rainbow"],
)
def test_identity_is_learned(task, options):
    env = Identity(8, **task)
    workflow = make_dqn(env, tau=0.05, target_update_every=1, random_steps=256, epsilon_steps=1_000, **options)
    is_rainbow = "noisy" in options
    buffer = PrioritizedReplayBuffer(10_000, 64, num_envs=8, spec=env.spec, n_step=2) if is_rainbow else None
    train(workflow, env, env_steps=4_000, updates_per_step=0.125, buffer=buffer)
    played = Identity(8, **task)
    assert score(workflow, played) > 0.95
    if task.get("masked"):
        assert int(env.forbidden.sum()) == int(played.forbidden.sum()) == 0


def test_a_memory_recalls_what_was_seen():
    env = Memory(16, num_cues=3, length=4)
    workflow = make_dqn(
        env,
        components=lambda: {"memory": GRU(4, 16), "critic": MLP(16, (16,), "relu")},
        double=True,
        tau=0.05,
        target_update_every=1,
        epsilon_steps=2_000,
        random_steps=500,
    )
    buffer = SequenceBuffer(20_000, 16, 8, num_envs=16, spec=env.spec)
    train(workflow, env, env_steps=5_000, updates_per_step=1 / 16, buffer=buffer, start_at=256)
    assert 4 * score(workflow, Memory(16, num_cues=3, length=4), episodes=64) > 0.9  # a reward per episode of 4 steps


@pytest.mark.learning
def test_the_packaged_experiment_ends_solved(tmp_path):
    assert run_packaged("dqn_cartpole", tmp_path) >= 475.0  # as gymnasium has it; at random: 22


@pytest.mark.parametrize("stop_at", [8, 61])
@pytest.mark.parametrize(
    "overrides",
    [
        ["+experiment=dqn_cartpole", "buffers.replay.n_step=3", "algorithm.target_update_every=7", "algorithm.tau=1.0"],
        ["+experiment=rainbow_cartpole"],
        ["+experiment=dqn_memory_gru"],
    ],
    ids=["n-step, copies", "prioritized, noisy", "memory"],
)
def test_a_stopped_run_goes_on_exactly(overrides, stop_at, tmp_path):
    assert resumes_exactly(overrides, tmp_path, stop_at=stop_at)
