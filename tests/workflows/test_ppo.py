"""PPO: its loss against an independent implementation, its options one by one."""

import copy
import math

import pytest
import torch
from torch import distributions as td

from rl_lab.components.cnn import CNN
from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.mlp import MLP
from rl_lab.components.policy_steps import summary
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, MultiDiscrete
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.identity import Identity
from rl_lab.environments.pendulum import Pendulum
from tests.no_looks import NoLooks
from tests.workflows.parts import collect, make_collector, make_ppo, parameters, phase, train, trunks

torch.set_num_threads(1)
EPOCHS, LR = 5, 0.03  # enough to leave the clip range
ENVIRONMENTS = {
    "discrete": lambda: CartPole(4, max_episode_steps=7),
    "multi_discrete": lambda: Identity(4, kind="multi_discrete", sizes=(3, 2)),
    "continuous": lambda: Pendulum(4, max_episode_steps=5),
}


def naive_distribution(workflow, action, features):
    """Return the policy's distribution as torch.distributions would have it."""
    head = workflow.policy.head
    if isinstance(action, Discrete):
        return td.Categorical(logits=head.logits(features))
    if isinstance(action, MultiDiscrete):
        return [td.Categorical(logits=part) for part in head.logits(features).split(action.nvec, -1)]
    return td.Independent(td.Normal(head.mean(features), head.log_std.exp().expand(*features.shape[:-1], -1)), 1)


def log_prob_and_entropy(pi, actions):
    if isinstance(pi, list):
        return sum(p.log_prob(actions[..., i]) for i, p in enumerate(pi)), sum(p.entropy() for p in pi)
    return pi.log_prob(actions), pi.entropy()


def naive_update(workflow, batch, *, gamma=0.99, lam=0.95, clip=0.2, value_clip=None, entropy_coef=0.0):
    """Full-batch steps, written from the paper; returns mean losses and entropy, and the share clipped at the end."""
    policy, action = workflow.policy, batch["actions"]
    latents = batch.get("latents", action)

    def value(obs):
        return policy.value_head(policy.critic(obs)).squeeze(-1)

    steps, num_envs = batch["rewards"].shape
    with torch.no_grad():
        old_values, next_values = value(batch["observations"]), value(batch["final_observations"])
        advantages = torch.zeros(steps, num_envs)
        for n in range(num_envs):
            running = 0.0
            for t in reversed(range(steps)):
                terminated, truncated = bool(batch["terminated"][t, n]), bool(batch["truncated"][t, n])
                target = float(batch["rewards"][t, n]) + (0.0 if terminated else gamma * float(next_values[t, n]))
                running = target - float(old_values[t, n]) + (0 if terminated or truncated else gamma * lam * running)
                advantages[t, n] = running
        targets = advantages + old_values
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        old_log_prob, _ = log_prob_and_entropy(
            naive_distribution(workflow, workflow.spec_action, policy.actor(batch["observations"])), latents
        )
    terms = []
    for _ in range(EPOCHS):
        pi = naive_distribution(workflow, workflow.spec_action, policy.actor(batch["observations"]))
        log_prob, entropy = log_prob_and_entropy(pi, latents)
        ratio = (log_prob - old_log_prob).exp()
        policy_loss = -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()
        values = value(batch["observations"])
        errors = (values - targets).square()
        if value_clip is not None:
            near = old_values + (values - old_values).clamp(-value_clip, value_clip)
            errors = torch.max(errors, (near - targets).square())
        loss = policy_loss + 0.5 * errors.mean() - entropy_coef * entropy.mean()
        workflow.optimizer_naive.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(workflow.policy.parameters(), 0.5)
        workflow.optimizer_naive.step()
        terms.append(torch.stack([policy_loss, errors.mean(), entropy.mean()]).detach())
    return torch.stack(terms).mean(0), ((ratio - 1).abs() > clip).float().mean()


@pytest.mark.parametrize("value_clip", [None, 0.05])
@pytest.mark.parametrize("few_envs", [256, 0])
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_updates_equal_a_naive_implementation(kind, few_envs, value_clip, monkeypatch):
    monkeypatch.setattr("rl_lab.workflows.ppo.FEW_ENVS", few_envs)  # in NumPy, and by autograd
    env = ENVIRONMENTS[kind]()
    options = {"entropy_coef": 0.01, "value_clip_range": value_clip, "num_epochs": EPOCHS, "num_minibatches": 1}
    ours, naive = (make_ppo(env.spec, lr=LR, **options) for _ in range(2))
    naive.spec_action = env.spec.action
    naive.optimizer_naive = torch.optim.Adam(naive.policy.parameters(), lr=LR, eps=1e-5)
    collector, most_clipped = make_collector(env), 0.0
    for _ in range(3):
        batch = collect(collector, ours, 12)
        metrics = ours.update_policy(batch, phase=phase())
        expected, clipped = naive_update(naive, batch, value_clip=value_clip, entropy_coef=0.01)
        for name, number in zip(("policy_loss", "value_loss", "entropy"), expected, strict=True):
            torch.testing.assert_close(metrics[name], number, rtol=1e-3, atol=1e-4)
        most_clipped = max(most_clipped, float(clipped))
    assert most_clipped > 0  # the clip range was at work
    flat = torch.cat([p.detach().flatten() for p in naive.policy.parameters()])
    torch.testing.assert_close(parameters(ours), flat, rtol=1e-3, atol=1e-4)


def fixed_batch(steps=8, num_envs=4):
    """Return a rollout that owes nothing to any random stream."""
    grid = torch.arange(steps * num_envs * 4, dtype=torch.float32).view(steps, num_envs, 4)
    index = torch.arange(steps * num_envs).view(steps, num_envs)
    return {
        "observations": grid.mul(0.37).sin(),
        "final_observations": grid.mul(0.37).add(0.2).sin(),
        "actions": index * 7 % 3 % 2,
        "rewards": index.mul(0.11).cos(),
        "terminated": index % 11 == 10,
        "truncated": index % 13 == 12,
        "is_first": torch.zeros(steps, num_envs, dtype=torch.bool),
    }


def with_fixed_parameters(workflow):
    for parameter in workflow.policy.parameters():
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_(count.mul(0.7).sin() * 0.3)
    return workflow


# policy_loss, value_loss, entropy, approx_kl, explained_variance of three full-batch updates on `fixed_batch`.
GOLDEN = [
    [-0.00392149, 3.08676, 0.681001, 0.00172153, 0.0164658],
    [-0.00470035, 3.17098, 0.677547, 0.00160364, 0.0472549],
    [-0.00567377, 3.25092, 0.648584, 0.00169557, 0.0773665],
]


def test_golden_losses():
    spec = EnvSpec("fixed", Box((4,)), Discrete(2))
    workflow = with_fixed_parameters(make_ppo(spec, lr=0.01, num_epochs=2, num_minibatches=1, entropy_coef=0.01))
    for expected in GOLDEN:
        metrics = workflow.update_policy(fixed_batch(), phase=phase())
        found = [
            float(metrics[name]) for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "explained_variance")
        ]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_same_seed_same_parameters_other_seed_others(kind):
    runs = []
    for seed in (3, 3, 4):
        env = ENVIRONMENTS[kind]()
        workflow = make_ppo(env.spec, seed=seed, normalize_observations=True, normalize_rewards=True)
        train(workflow, env, steps=16, updates=3, seed=seed)
        runs.append(parameters(workflow))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_metrics_are_detached_scalars():
    env = ENVIRONMENTS["discrete"]()
    workflow = make_ppo(env.spec, learning_rate_schedule="kl_adaptive")
    _, metrics = train(workflow, env, steps=8, updates=1)
    names = "policy_loss value_loss entropy grad_norm approx_kl clip_fraction learning_rate explained_variance"
    assert set(metrics) == set(names.split())
    for value in metrics.values():
        assert value.ndim == 0
        assert not value.requires_grad
        assert torch.isfinite(value)


def test_deterministic_mode_draws_nothing():
    env = ENVIRONMENTS["continuous"]()
    workflow, obs = make_ppo(env.spec), env.reset(0)
    state, first = torch.get_rng_state(), torch.ones(4, dtype=torch.bool)
    actions, extras, carry = workflow.act(obs, None, is_first=first, explore=False, step=0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(extras["latents"], workflow.policy.head.mean(workflow.policy.actor(obs)).detach())
    assert torch.equal(actions, extras["latents"].clamp(-2, 2))
    assert carry is None


def test_old_policy_is_the_one_that_collected():
    # Normaliser statistics change only after an update, so that the first ratios are 1 and the first KL is 0.
    env = ENVIRONMENTS["continuous"]()
    workflow = make_ppo(env.spec, normalize_observations=True, num_epochs=1, num_minibatches=1)
    collector = make_collector(env)
    for _ in range(3):
        metrics = workflow.update_policy(collect(collector, workflow, 16), phase=phase())
        assert abs(float(metrics["approx_kl"])) < 1e-6
    assert workflow.policy.normalizer.count == 3 * 16 * 4


def test_time_limits_bootstrap_and_terminations_do_not():
    spec = EnvSpec("x", Box((4,)), Discrete(2))
    workflow = make_ppo(spec, gamma=0.5, gae_lambda=1.0)
    batch = fixed_batch(steps=1, num_envs=3)
    batch["terminated"], batch["truncated"] = torch.tensor([[True, False, False]]), torch.tensor([[False, True, False]])
    rollout, _ = workflow._evaluate(batch)
    values = workflow.policy.value((batch["final_observations"][0], None), None, batch["is_first"][0])
    expected = batch["rewards"][0] + 0.5 * values * torch.tensor([0.0, 1.0, 1.0])
    torch.testing.assert_close(torch.as_tensor(rollout["targets"]), expected.detach())


def test_minibatches_cover_every_row_once():
    spec = EnvSpec("x", Box((4,)), Discrete(2))
    workflow = make_ppo(spec, num_minibatches=3)
    rollout, _ = workflow._evaluate(fixed_batch())
    parts = list(workflow._minibatches(rollout))
    assert [len(part["values"]) for part in parts] == [11, 11, 10]
    joined = [float(x) for part in parts for x in part["targets"]]
    assert sorted(joined) == sorted(float(x) for x in rollout["targets"])


def test_every_epoch_has_a_permutation_of_its_own(monkeypatch):
    """The original drew one and went through the same minibatches in every epoch."""
    workflow = make_ppo(EnvSpec("x", Box((4,)), Discrete(2)), num_minibatches=2, num_epochs=4)
    seen, differentiate = [], workflow._differentiate

    def watched(minibatch):
        seen.append(tuple(float(x) for x in minibatch["targets"]))
        return differentiate(minibatch)

    monkeypatch.setattr(workflow, "_differentiate", watched)
    workflow.update_policy(fixed_batch(), phase=phase())
    epochs = [(*seen[i], *seen[i + 1]) for i in range(0, 8, 2)]
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1  # of the same rows
    assert len(set(epochs)) == 4
    assert len({frozenset(part) for part in seen}) == 8  # in other minibatches


@pytest.mark.parametrize("scope", ["minibatch", "batch", "none"])
def test_advantage_normalisation(scope):
    spec = EnvSpec("x", Box((4,)), Discrete(2))
    rollout, _ = make_ppo(spec, normalize_advantages=scope)._evaluate(fixed_batch())
    is_normal = abs(float(torch.as_tensor(rollout["advantages"]).std(correction=0)) - 1.0) < 1e-5
    assert is_normal == (scope == "batch")


def test_reward_scaling_uses_the_running_return():
    spec = EnvSpec("x", Box((4,)), Discrete(2))
    workflow, batch = make_ppo(spec, normalize_rewards=True, gamma=0.9), fixed_batch()
    workflow._evaluate(batch)
    running, returns = torch.zeros(4), []
    for t in range(8):
        running = batch["rewards"][t] + 0.9 * running
        returns.append(running)
        running = running * ~(batch["terminated"][t] | batch["truncated"][t])
    std = torch.stack(returns).std(correction=0)
    torch.testing.assert_close(workflow.reward_scaler.statistics.inv_std, 1 / std)


def test_linear_learning_rate_follows_the_phase():
    env = ENVIRONMENTS["discrete"]()
    workflow = make_ppo(env.spec, lr=0.4, learning_rate_schedule="linear")
    batch = collect(make_collector(env), workflow, 8)
    for progress, rate in ((0.0, 0.4), (0.75, 0.1), (1.0, 0.0)):
        assert workflow.update_policy(batch, phase=phase(progress))["learning_rate"] == pytest.approx(rate)


def test_kl_adaptive_learning_rate_moves_the_right_way():
    env = ENVIRONMENTS["discrete"]()
    rates = {}
    for desired_kl in (1e-9, 1e3):
        workflow = make_ppo(env.spec, lr=1e-3, learning_rate_schedule="kl_adaptive", desired_kl=desired_kl)
        rates[desired_kl] = float(train(workflow, env, steps=32, updates=1)[1]["learning_rate"])
    assert rates[1e-9] < 1e-3 < rates[1e3]
    assert min(rates.values()) >= 0.99e-5
    assert max(rates.values()) <= 1.01e-2


def stopped_by_hand(workflow, batch, target_kl):
    """Update as PPO does, but leave by an ordinary `break`; return the number of gradient steps."""
    rollout, _ = workflow._evaluate(batch)
    taken = 0
    for _ in range(workflow.num_epochs):
        for minibatch in workflow._minibatches(rollout):
            _, log_ratio = workflow._differentiate(minibatch)
            if float((log_ratio.exp() - 1 - log_ratio).mean()) > target_kl:
                return taken
            workflow.optimizer.step()
            taken += 1
    return taken


def test_target_kl_mask_equals_an_early_stop():
    env = ENVIRONMENTS["discrete"]()
    options = {"lr": 0.02, "target_kl": 0.01}
    masked, stopped = make_ppo(env.spec, **options), make_ppo(env.spec, **options)
    batch = collect(make_collector(env), masked, 32)
    torch.manual_seed(5)
    masked.update_policy(batch, phase=phase())
    torch.manual_seed(5)
    taken = stopped_by_hand(stopped, batch, 0.01)
    assert 0 < taken < 16
    assert torch.equal(parameters(masked), parameters(stopped))
    for ours, theirs in zip(*(w.optimizer.state[w.networks.tensor].values() for w in (masked, stopped)), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(parameters(masked), parameters(make_ppo(env.spec, **options)))


def test_steps_that_target_kl_refused_leave_the_metrics_finite():
    scalars = [torch.tensor(value) for value in (1.0, 2.0, 3.0, 4.0, math.inf, math.nan, math.nan, math.inf)]
    log_ratios = [torch.tensor([0.0, 0.1]), torch.tensor([500.0, math.log(0.5)])]
    metrics = summary(scalars, log_ratios, [torch.tensor(True), torch.tensor(False)], 0.2)
    assert [float(metrics[name]) for name in ("policy_loss", "value_loss", "entropy", "grad_norm")] == [1, 2, 3, 4]
    assert float(metrics["clip_fraction"]) == 0.5  # of ratios 1, 1.1, endless, 0.5
    assert 1e6 < float(metrics["approx_kl"]) < math.inf


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_update_never_waits_for_the_device(kind, monkeypatch):
    monkeypatch.setattr("rl_lab.workflows.ppo.FEW_ENVS", 0)  # the path that a GPU takes
    env = ENVIRONMENTS[kind]()
    options = {"target_kl": 0.01, "learning_rate_schedule": "kl_adaptive", "entropy_coef": 0.01}
    workflow = make_ppo(env.spec, **options, normalize_observations=True, normalize_rewards=True)
    batch = collect(make_collector(env), workflow, 16)
    workflow.update_policy(batch, phase=phase())
    obs = env.reset(0)
    with NoLooks():
        workflow.act(obs, None, is_first=torch.ones(4, dtype=torch.bool), explore=True, step=0)
        workflow.update_policy(batch, phase=phase())
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoLooks():
        float(torch.ones(()) + 1)


def test_masked_actions_are_never_taken_also_while_learning():
    env = Identity(16, kind="multi_discrete", sizes=(4, 3), masked=True)
    workflow = make_ppo(env.spec, num_envs=16, lr=3e-3)
    train(workflow, env, steps=32, updates=5)
    assert int(env.forbidden.sum()) == 0


def test_state_dict_restores_policy_normalisers_and_optimiser():
    env = ENVIRONMENTS["continuous"]()
    options = {"normalize_observations": True, "normalize_rewards": True, "learning_rate_schedule": "kl_adaptive"}
    first, second = make_ppo(env.spec, seed=1, **options), make_ppo(env.spec, seed=2, **options)
    collector = make_collector(env)
    first.update_policy(collect(collector, first, 16), phase=phase())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.set_state(copy.deepcopy(first.get_state()))
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    batch = collect(collector, first, 16)
    for workflow in (first, second):
        torch.manual_seed(0)
        workflow.update_policy(batch, phase=phase())
    assert torch.equal(parameters(first), parameters(second))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_other_optimisers(optimizer):
    env = ENVIRONMENTS["discrete"]()
    workflow = make_ppo(env.spec, optimizer=lambda params: optimizer(params, lr=1e-2), target_kl=0.05)
    before = parameters(workflow)
    train(workflow, env, steps=16, updates=2)
    assert not torch.equal(parameters(workflow), before)


def test_shared_trunk_squashed_and_state_dependent():
    env = ENVIRONMENTS["continuous"]()
    workflow = make_ppo(
        env.spec, trunks(env.spec, shared=True), squash_actions=True, state_dependent_std=True, entropy_coef=0.01
    )
    collector = make_collector(env)
    batch = collect(collector, workflow, 16)
    torch.testing.assert_close(batch["actions"], 2.0 * batch["latents"].tanh())
    metrics = workflow.update_policy(batch, phase=phase())
    assert all(math.isfinite(float(value)) for value in metrics.values())


def test_wrong_options_list_the_choices():
    spec = EnvSpec("x", Box((4,)), Discrete(2))
    with pytest.raises(ConfigError, match=r"algorithm\.learning_rate_schedule 'liner'; did you mean 'linear'"):
        make_ppo(spec, learning_rate_schedule="liner")
    with pytest.raises(ConfigError, match=r"algorithm\.normalize_advantages 'all' \(choices: batch, minibatch, none\)"):
        make_ppo(spec, normalize_advantages="all")
    with pytest.raises(ConfigError, match="unknown component 'actor'"):
        make_ppo(spec, {"critic": MLP(4, [8])})


@pytest.mark.parametrize("shared", [True, False])
def test_images_and_dicts_are_read_by_encoders(shared):
    torch.manual_seed(0)
    space = {"image": Box((3, 36, 36), torch.uint8), "state": Box((2,))}
    obs = {"image": torch.randint(256, (5, 4, 3, 36, 36), dtype=torch.uint8), "state": torch.randn(5, 4, 2)}
    batch = fixed_batch(steps=5) | {"observations": obs, "final_observations": obs}
    encoder = DictEncoder({"image": CNN([3, 36, 36], output_dim=8), "state": MLP(2, [4])})
    parts = {"encoder": encoder, "actor": MLP(12, [8])} | ({} if shared else {"critic": MLP(12, [8])})
    workflow = make_ppo(EnvSpec("x", space, Discrete(2)), parts)
    before = encoder.encoders["image"].head[0].weight.detach().clone()
    metrics = workflow.update_policy(batch, phase=phase())
    assert all(math.isfinite(float(value)) for value in metrics.values())
    assert not torch.equal(encoder.encoders["image"].head[0].weight, before)
    rollout, _ = workflow._evaluate(batch)
    assert rollout["inputs"][0]["image"].dtype == torch.uint8  # images are not blown up to floats in the rollout
