"""PPO learns: identity tasks and CartPole in seconds."""

import pytest
import torch

from rl_lab.core import RngStreams
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.identity import Identity
from rl_lab.environments.pendulum import Pendulum
from rl_lab.orchestration.evaluator import Evaluator
from tests.workflows.parts import make_ppo, train, trunks

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("task", "options", "threshold"),
    [
        ({"kind": "discrete", "sizes": (4,)}, {}, 0.95),
        ({"kind": "discrete", "sizes": (6,), "masked": True}, {}, 0.95),
        ({"kind": "multi_discrete", "sizes": (3, 2)}, {}, 0.9),
        ({"kind": "continuous", "sizes": (1, 1)}, {"initial_log_std": -0.5}, 0.97),
        ({"kind": "continuous", "sizes": (1,)}, {"squash_actions": True, "state_dependent_std": True}, 0.95),
    ],
)
def test_identity_is_learned(task, options, threshold):
    env = Identity(16, **task)
    workflow = make_ppo(env.spec, num_envs=16, lr=1e-2, gamma=0.0, gae_lambda=0.0, **options)
    train(workflow, env, steps=32, updates=30)
    result = Evaluator(Identity(16, **task), 16, RngStreams(0)).evaluate(workflow, step=0)
    assert result["return"] / result["length"] > threshold


CARTPOLE = {"gamma": 0.98, "gae_lambda": 0.8, "num_epochs": 10, "learning_rate_schedule": "linear", "lr": 2.5e-3}


def test_cartpole_is_learned():
    env = CartPole(32)
    workflow = make_ppo(env.spec, trunks(env.spec, (64, 64)), num_envs=32, **CARTPOLE)
    train(workflow, env, steps=32, updates=25)
    assert Evaluator(CartPole(20), 20, RngStreams(0)).evaluate(workflow, step=0)["return"] > 300


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_cartpole_is_solved(seed):
    env = CartPole(8)
    workflow = make_ppo(env.spec, trunks(env.spec, (64, 64)), num_envs=8, seed=seed, **CARTPOLE)
    train(workflow, env, steps=128, updates=97, seed=seed)
    assert Evaluator(CartPole(50), 100, RngStreams(seed)).evaluate(workflow, step=0)["return"] >= 475


@pytest.mark.learning
def test_pendulum_is_learned():
    env = Pendulum(64)
    options = {"gamma": 0.95, "num_epochs": 10, "num_minibatches": 8, "lr": 1e-3}
    workflow = make_ppo(
        env.spec,
        trunks(env.spec, (64, 64)),
        num_envs=64,
        normalize_observations=True,
        normalize_rewards=True,
        learning_rate_schedule="linear",
        **options,
    )
    train(workflow, env, steps=32, updates=200)
    assert Evaluator(Pendulum(50), 100, RngStreams(0)).evaluate(workflow, step=0)["return"] > -250
