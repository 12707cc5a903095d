"""PPO with a memory: stored carries, sequences, bootstrapping, and recall that nothing else can learn."""

import pytest
import torch

from rl_lab.components.mlp import MLP
from rl_lab.components.recurrent import GRU, LSTM
from rl_lab.components.transformer import Transformer
from rl_lab.core import ConfigError, tree_map
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.memory import Memory
from tests.workflows.parts import collect, make_collector, make_ppo, parameters, phase, train

torch.set_num_threads(1)
MAKERS = {
    "gru": lambda dim: GRU(dim, 16),
    "lstm": lambda dim: LSTM(dim, 16),
    "transformer": lambda dim: Transformer(dim, 16, context=6, num_heads=2),
}


def recurrent_ppo(kind, env, **options):
    torch.manual_seed(0)
    dim = env.spec.observation.shape[0]
    parts = {"memory": MAKERS[kind](dim), "actor": MLP(16, [16]), "critic": MLP(16, [16])}
    return make_ppo(env.spec, parts, num_envs=env.num_envs, **options)


@pytest.fixture(params=MAKERS)
def kind(request):
    return request.param


def test_values_and_log_probs_equal_a_walk_through_the_rollout(kind):
    env = CartPole(3, max_episode_steps=6)
    workflow = recurrent_ppo(kind, env, sequence_length=4, gamma=0.9, gae_lambda=0.0)
    batch = collect(make_collector(env), workflow, 12)
    assert batch["is_first"][1:].any()
    rollout, _ = workflow._evaluate(batch)
    policy, carry, never = workflow.policy, workflow.initial_carry(3), torch.zeros(3, dtype=torch.bool)
    values, next_values, log_probs = [], [], []
    with torch.no_grad():
        for t in range(12):
            pi, value, carry = policy((batch["observations"][t], None), carry, batch["is_first"][t])
            log_probs.append(pi.log_prob(batch["actions"][t]))
            values.append(value)
            next_values.append(policy.value((batch["final_observations"][t], None), carry, never))
    targets = batch["rewards"] + 0.9 * torch.stack(next_values) * ~batch["terminated"]  # lambda 0: one step

    def rows(x):
        """Cut [12, 3] into three sequences of four per environment: [4, 9]."""
        return torch.cat([x[start : start + 4] for start in (0, 4, 8)], dim=1)

    torch.testing.assert_close(rollout["values"], rows(torch.stack(values)))
    torch.testing.assert_close(rollout["log_probs"], rows(torch.stack(log_probs)))
    torch.testing.assert_close(rollout["targets"], rows(targets))


def test_training_sequences_reproduce_the_old_policy(kind):
    # Unrolled from the stored carry with unchanged parameters, every ratio is 1.
    env = CartPole(3, max_episode_steps=6)
    workflow = recurrent_ppo(kind, env, sequence_length=4, num_minibatches=2)
    rollout, _ = workflow._evaluate(collect(make_collector(env), workflow, 12))
    for minibatch in workflow._minibatches(rollout):
        _, log_ratio = workflow._differentiate(minibatch)
        assert log_ratio.shape[0] == 4
        assert log_ratio.abs().max() < 1e-5


def test_act_records_the_carry_before_the_step(kind):
    env = CartPole(3)
    workflow = recurrent_ppo(kind, env)
    batch = collect(make_collector(env), workflow, 5)
    start = tree_map(lambda x: x[0], batch["carry"])
    torch.testing.assert_close(start, workflow.initial_carry(3))


def test_same_seed_same_parameters(kind):
    runs = []
    for _ in range(2):
        env = CartPole(3, max_episode_steps=6)
        workflow = recurrent_ppo(kind, env, sequence_length=4, target_kl=0.01)
        train(workflow, env, steps=8, updates=2)
        runs.append(parameters(workflow))
    assert torch.equal(*runs)


def test_sequence_length_must_divide_the_rollout():
    env = CartPole(3)
    workflow = recurrent_ppo("gru", env, sequence_length=5)
    batch = collect(make_collector(env), workflow, 8)
    with pytest.raises(ConfigError, match=r"algorithm\.sequence_length: 5 does not divide the 8 collected"):
        workflow.update_policy(batch, phase=phase())


def recall(kind, updates):
    env = Memory(32, num_cues=3, length=3)
    options = {"sequence_length": 12, "num_epochs": 6, "entropy_coef": 0.01, "lr": 5e-3}
    rewards, _ = train(recurrent_ppo(kind, env, **options), env, steps=24, updates=updates)
    return 3 * sum(rewards[-3:]) / 3  # reward per episode; 1 / 3 without memory


def test_recall_is_learned():
    assert recall("gru", 25) > 0.8


@pytest.mark.learning
def test_recall_is_learned_by_every_memory(kind):
    assert recall(kind, 60) > 0.9
