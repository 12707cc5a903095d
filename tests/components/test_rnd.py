"""Rewards for what is new: the error and its scale by hand, and a lock that only curiosity opens."""

import numpy as np
import pytest
import torch

from rl_lab.components.mlp import MLP
from rl_lab.components.recurrent import GRU
from rl_lab.components.rnd import RND
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Named, Optimizers, RngStreams, WorkflowContext
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.lock import Lock
from tests.workflows.parts import collect, make_collector, make_ppo, parameters, phase, train
from tests.workflows.test_ppo import fixed_batch

torch.set_num_threads(1)
SPEC = EnvSpec("x", Box((4,)), Discrete(2))


def test_rewards_are_scaled_errors_on_what_a_step_led_to():
    workflow = make_ppo(SPEC, extensions={"rnd": RND(weight=0.5, final_weight=0.1, gamma=0.9)})
    rnd, batch = workflow.extensions["rnd"], fixed_batch()
    with torch.no_grad():
        found = rnd.rewards(batch, batch["rewards"], 0.25)
    seen = batch["final_observations"].double().numpy()
    normal = np.clip((seen - seen.mean((0, 1))) / np.sqrt(seen.var((0, 1)) + 1e-8), -5, 5)
    networks = [network.double() for network in (rnd.predictor, rnd.target)]
    with torch.no_grad():
        guess, truth = (network(torch.from_numpy(normal)).numpy() for network in networks)
    errors = ((guess - truth) ** 2).mean(-1)
    running, returns = np.zeros(4), []
    for row in errors:  # through episodes
        running = row + 0.9 * running
        returns.append(running)
    intrinsic = errors / np.sqrt(np.var(returns) + 1e-8)
    expected = batch["rewards"].double().numpy() + 0.4 * np.clip(intrinsic, -10, 10)  # 0.5 + 0.25 (0.1 - 0.5)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rnd.get_state()["returns"].numpy(), running, rtol=1e-4)


def test_the_predictor_learns_the_target_which_stays():
    workflow = make_ppo(SPEC, extensions={"rnd": RND(learning_rate=1e-2)})
    target = [p.clone() for p in workflow.extensions["rnd"].target.parameters()]
    losses = [float(workflow.update_policy(fixed_batch(), phase=phase())["rnd_loss"]) for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]
    for before, after in zip(target, workflow.extensions["rnd"].target.parameters(), strict=True):
        assert torch.equal(before, after)
    assert all(p.requires_grad is False for p in workflow.extensions["rnd"].target.parameters())


def test_no_weight_is_plain_ppo():
    with_rnd, plain = (make_ppo(SPEC, extensions=part, num_minibatches=1) for part in ({"rnd": RND(weight=0.0)}, None))
    for workflow in (with_rnd, plain):
        torch.manual_seed(1)
        workflow.update_policy(fixed_batch(), phase=phase())
    torch.testing.assert_close(parameters(with_rnd), parameters(plain), rtol=1e-4, atol=1e-5)


# intrinsic_reward and rnd_loss of three updates on `fixed_batch`, with fixed parameters.
GOLDEN = [
    [0.325218, 0.0311502],
    [0.144591, 0.0186701],
    [0.069634, 0.0103472],
]


def golden_workflow():
    workflow = make_ppo(
        SPEC, extensions={"rnd": RND(hidden_dims=[8], output_dim=4, num_minibatches=1, learning_rate=0.01)}
    )
    for index, parameter in enumerate([p for p in workflow.parameters() if p.ndim == 2]):
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_((count * 0.7 + index).sin() * 0.3)
    return workflow


def test_golden_losses():
    workflow = golden_workflow()
    for expected in GOLDEN:
        metrics = workflow.update_policy(fixed_batch(), phase=phase())
        found = [float(metrics[name]) for name in ("intrinsic_reward", "rnd_loss")]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_same_seed_same_parameters_other_seed_others():
    runs = []
    for seed in (3, 3, 4):
        env = CartPole(4, max_episode_steps=7)
        workflow = make_ppo(env.spec, extensions={"rnd": RND()}, seed=seed)
        train(workflow, env, steps=16, updates=2, seed=seed)
        runs.append(torch.cat([value.flatten().float() for value in workflow.state_dict().values()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def opened(weight, seed=0):
    """Return the mean reward per step of the last rollout of PPO at the lock."""
    env = Lock(32, turns=9)
    rnd = {"rnd": RND(weight=weight, final_weight=0.0, learning_rate=1e-3)}
    workflow = make_ppo(env.spec, extensions=rnd, num_envs=32, lr=1e-2, entropy_coef=0.01, seed=seed)
    return train(workflow, env, steps=32, updates=20, seed=seed)[0][-1]


def test_curiosity_opens_a_lock():
    assert opened(0.0) == 0.0
    assert opened(0.1) > 0.08  # 1 / 9 at best


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(1, 4))
def test_curiosity_opens_the_lock_for_other_seeds(seed):
    assert opened(0.0, seed) == 0.0
    assert opened(0.1, seed) > 0.08


def test_parts_of_dict_observations():
    spec = EnvSpec("x", {"a": Box((3,)), "b": Box((2,)), "image": Box((3, 8, 8))}, Discrete(2))
    with pytest.raises(ConfigError, match=r"components.rnd.key: unknown observation 'c' \(choices: a, b, image\)"):
        RND(key="c").bind(_context(spec), None, None)
    with pytest.raises(ConfigError, match="components.rnd: reads vectors, not images"):
        RND().bind(_context(spec), None, None)
    rnd = RND(key="b")
    rnd.bind(_context(spec), None, None)
    assert rnd.predictor[0].input_dim == 2


def _context(spec):
    nothing = Named("component", {})
    return WorkflowContext({}, torch.device("cpu"), spec, 4, nothing, nothing, Optimizers({}), nothing, RngStreams(0))


def test_recurrent_policies_may_be_curious():
    env = CartPole(4, max_episode_steps=7)
    parts = {"actor": MLP(8, [8]), "memory": GRU(4, 8), "rnd": RND()}
    workflow = make_ppo(env.spec, parts)
    metrics = workflow.update_policy(collect(make_collector(env), workflow, 16), phase=phase())
    assert float(metrics["intrinsic_reward"]) > 0.0
