"""TD3: its targets by hand, its updates against a naive implementation, its options one by one."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.components.action_values import ValueRange
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.components.recurrent import GRU
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Update
from rl_lab.environments.pendulum import Pendulum
from rl_lab.workflows.td3 import TD3
from tests.workflows.off_policy import networks, phase, random_batch, start, train
from tests.workflows.parts import collect, make_collector

torch.set_num_threads(1)
SPEC = EnvSpec("fixed", Box((3,)), Box((2,), low=-2.0, high=2.0))
DDPG = {"policy_delay": 1, "target_noise": 0.0}
FAST = {"delay_targets": False, "use_target_actor": False, "actor_reduction": "min", "tau": 0.1}


def make_td3(spec=SPEC, components=None, *, hidden=(16,), seed=0, lr=1e-3, static=None, num_envs=4, **options):
    """Return an initialised TD3; the same seed gives the same parameters."""
    build = components or (lambda: networks(spec, hidden))
    names, settings = ("critic", "actor"), {"seed": seed, "lr": lr, "static": static, "num_envs": num_envs}
    return start(TD3(**options), spec, build, names=names, **settings)


def parameters(*modules):
    return torch.cat([p.detach().flatten() for module in modules for p in module.parameters()])


def shaken(workflow, seed=1):
    """Move every parameter, those of the target networks too, so that no two networks are alike."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in workflow.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return workflow


# What follows is the algorithm once more, in NumPy or with plain torch modules.


def numpy_actor(policy, x):
    """Return the actions of a policy with one hidden layer."""
    layer, head = policy.trunk[0], policy.head
    weights = [np.float64(t.detach().numpy()) for t in (layer.weight, layer.bias, head.weight, head.bias)]
    hidden = np.maximum(0.0, x @ weights[0].T + weights[1])
    return np.tanh(hidden @ weights[2].T + weights[3])


def numpy_critic(critic, member, x, actions):
    """Return the outputs of one critic with one hidden layer."""
    layer, head = critic.trunk.layers[0], critic.head
    weights = [np.float64(t[member].detach().numpy()) for t in (layer.weight, layer.bias, head.weight, head.bias)]
    hidden = np.maximum(0.0, np.concatenate([x, actions], -1) @ weights[0] + weights[1])
    return hidden @ weights[2] + weights[3]


def episode_ends():
    """Return three steps, one that goes on, one that is terminal and one that is cut, as a replay batch in order."""
    generator = torch.Generator().manual_seed(5)
    trajectory = {
        "observations": torch.randn(3, 1, 3, generator=generator),
        "final_observations": torch.randn(3, 1, 3, generator=generator),
        "actions": torch.rand(3, 1, 2, generator=generator) * 4 - 2,
        "rewards": torch.tensor([[1.0], [2.0], [3.0]]),
        "terminated": torch.tensor([[False], [True], [False]]),
        "truncated": torch.tensor([[False], [False], [True]]),
        "is_first": torch.tensor([[True], [False], [True]]),
    }
    buffer = ReplayBuffer(100, 64, min_size=3, gamma=0.9, num_envs=1, spec=SPEC)
    buffer.add(trajectory)
    batch = buffer.sample()
    rows = [int((batch["rewards"] == reward).nonzero()[0, 0]) for reward in (1.0, 2.0, 3.0)]
    return {key: batch[key][rows] for key in ("observations", "next_observations", "actions", "rewards", "discounts")}


NOISE = torch.tensor([[3.0, -0.5], [0.1, 0.2], [-9.0, 1.0]])  # times 0.2: some of it beyond the clip range


@pytest.mark.parametrize("reduction", ["min", "own"])
def test_targets_by_hand(reduction, monkeypatch):
    workflow = shaken(make_td3(gamma=0.9, reward_scale=0.5, target_reduction=reduction))
    workflow.target_policy.head.bias.data.copy_(torch.tensor([0.5, 1.5]))
    batch = episode_ends()
    rows = workflow.perception(batch, workflow.target_perception, 0.9)
    monkeypatch.setattr(torch, "randn_like", lambda x: NOISE)
    found = workflow._targets(rows)
    x = np.float64(batch["next_observations"].numpy())
    clean = numpy_actor(workflow.target_policy, x)
    noise = np.array([[0.5, -0.1], [0.02, 0.04], [-0.5, 0.2]])
    actions = np.minimum(1.0, np.maximum(-1.0, clean + noise))
    assert (actions != clean + noise).any()  # the bounds were at work
    q1, q2 = (numpy_critic(workflow.target_critic, member, x, actions)[:, 0] for member in (0, 1))
    assert len({q1[i] < q2[i] for i in range(3)}) == 2  # the lowest is not always the same
    rewards, discounts = np.array([0.5, 1.0, 1.5]), np.array([0.9, 0.0, 0.9])
    expected = rewards + discounts * (np.minimum(q1, q2) if reduction == "min" else np.stack([q1, q2]))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_without_a_target_actor_the_policy_itself_acts_next():
    workflow = shaken(make_td3(gamma=0.9, use_target_actor=False, target_noise=0.0))
    assert workflow.target_policy is None
    batch = episode_ends()
    x = np.float64(batch["next_observations"].numpy())
    actions = numpy_actor(workflow.policy, x)
    q1, q2 = (numpy_critic(workflow.target_critic, member, x, actions)[:, 0] for member in (0, 1))
    found = workflow._targets(workflow.perception(batch, workflow.target_perception, 0.9))
    expected = np.array([1.0, 2.0, 3.0]) + np.array([0.9, 0.0, 0.9]) * np.minimum(q1, q2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def projected(probs, rewards, discounts, support):
    """Return the distribution a step earlier, on the same atoms: atom by atom, as in Bellemare et al., 2017."""
    low, high, spacing = support[0], support[-1], support[1] - support[0]
    result = np.zeros_like(probs)
    for row, atom in np.ndindex(*probs.shape):
        position = (min(high, max(low, rewards[row] + discounts[row] * support[atom])) - low) / spacing
        below = min(math.floor(position), len(support) - 2)
        result[row, below] += probs[row, atom] * (below + 1 - position)
        result[row, below + 1] += probs[row, atom] * (position - below)
    return result


@pytest.mark.parametrize("reduction", ["min", "own"])
def test_distributional_targets_come_from_the_critic_with_the_lowest_value(reduction):
    options = {"value_range": ValueRange(-2.0, 4.0, 7), "target_noise": 0.0, "target_reduction": reduction}
    workflow, batch = shaken(make_td3(gamma=0.9, **options)), episode_ends()
    support = np.linspace(-2.0, 4.0, 7)
    x = np.float64(batch["next_observations"].numpy())
    actions, probs = numpy_actor(workflow.target_policy, x), []
    for member in (0, 1):
        exps = np.exp(numpy_critic(workflow.target_critic, member, x, actions))
        probs.append(exps / exps.sum(-1, keepdims=True))
    lowest = [min((0, 1), key=lambda member: probs[member][row] @ support) for row in range(3)]
    if reduction == "min":
        probs = [np.stack([probs[member][row] for row, member in enumerate(lowest)])]
    rewards, discounts = np.array([1.0, 2.0, 3.0]), np.array([0.9, 0.0, 0.9])
    expected = np.stack([projected(p, rewards, discounts, support) for p in probs])
    found = workflow._targets(workflow.perception(batch, workflow.target_perception, 0.9)).numpy()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.reshape(expected.shape)[:, 1], [[0, 0, 0, 0, 1, 0, 0]] * len(probs), atol=1e-6)


class Naive:
    """TD3 from the pseudo-code of the paper: separate networks, loops, torch's Adam, losses by the minibatch mean."""

    def __init__(self, workflow, lr):
        self.flow = workflow
        self.actor = self._sequential(workflow.policy.trunk[0], workflow.policy.head, nn.Tanh())
        self.critics = [self._member(workflow.critic, i) for i in range(workflow.critic.trunk.num_members)]
        self.targets = copy.deepcopy([self.actor, *self.critics])
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_adam = torch.optim.Adam(itertools.chain(*(c.parameters() for c in self.critics)), lr=lr)
        self.count = 0

    def _sequential(self, first, second, *last):
        return copy.deepcopy(nn.Sequential(first, nn.ReLU(), second, *last))

    def _member(self, critic, i):
        layers = []
        for source in (critic.trunk.layers[0], critic.head):
            layer = nn.Linear(*source.weight.shape[1:])
            layer.weight.data, layer.bias.data = source.weight[i].detach().T.clone(), source.bias[i, 0].detach().clone()
            layers.append(layer)
        return self._sequential(*layers)

    def update(self, batch):
        flow = self.flow
        self.count += 1
        x, y, actions = batch["observations"], batch["next_observations"], batch["actions"] / 2.0
        with torch.no_grad():
            smooth = (self.targets[0] if flow.use_target_actor else self.actor)(y)
            if flow.target_noise:
                noise = (torch.randn(smooth.shape) * flow.target_noise).clamp(-0.5, 0.5)
                smooth = (smooth + noise).clamp(-1, 1)
            values = [critic(torch.cat([y, smooth], 1)).squeeze(1) for critic in self.targets[1:]]
            lowest = values[0] if len(values) == 1 else torch.min(*values)
            target = batch["rewards"] + flow.gamma * (1.0 - batch["terminated"].float()) * lowest
        loss = 0
        for critic in self.critics:
            loss = loss + 0.5 * ((critic(torch.cat([x, actions], 1)).squeeze(1) - target) ** 2).mean()
        self._step(self.critic_adam, loss)
        metrics = {"critic_loss": loss.detach()}
        is_due = self.count % flow.policy_delay == 0
        if is_due:
            values = [critic(torch.cat([x, self.actor(x)], 1)) for critic in self.critics]
            climbed = values[0] if flow.actor_reduction == "first" else torch.min(*values)
            metrics["actor_loss"] = -climbed.mean().detach()
            self._step(self.actor_adam, -climbed.mean())
        if is_due or not flow.delay_targets:
            for target, source in zip(self.targets, [self.actor, *self.critics], strict=True):
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.data = flow.tau * new.data + (1 - flow.tau) * old.data
        return metrics

    def _step(self, adam, loss):
        adam.zero_grad()
        loss.backward()
        adam.step()


VARIANTS = {"td3": ({}, 2), "ddpg": (DDPG, 1), "fast": (FAST, 2), "slow": ({"policy_delay": 3}, 2)}


@pytest.mark.parametrize("kind", VARIANTS)
def test_updates_equal_a_naive_implementation(kind):
    options, members = VARIANTS[kind]
    ours = make_td3(components=lambda: networks(SPEC, num_members=members), lr=0.01, **options)
    naive = Naive(ours, lr=0.01)
    for index in range(6):
        batch = random_batch(SPEC, seed=index)
        torch.manual_seed(index)
        metrics = ours.update_agent(batch, phase=phase())
        torch.manual_seed(index)
        for name, number in naive.update(batch).items():
            torch.testing.assert_close(metrics[name], number, rtol=1e-4, atol=1e-5)
        assert ("actor_loss" in metrics) == ((index + 1) % ours.policy_delay == 0)
    pairs = [(ours.policy, naive.actor)]
    if ours.target_policy is not None:
        pairs.append((ours.target_policy, naive.targets[0]))
    for mine, theirs in pairs:
        torch.testing.assert_close(parameters(mine), parameters(theirs), rtol=1e-3, atol=1e-5)
    for mine, theirs in ((ours.critic, naive.critics), (ours.target_critic, naive.targets[1:])):
        for i, other in enumerate(theirs):
            torch.testing.assert_close(mine.trunk.layers[0].weight[i].T, other[0].weight, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(mine.head.bias[i, 0], other[2].bias, rtol=1e-3, atol=1e-5)


def with_fixed_parameters(workflow):
    for module in (workflow.policy, workflow.critic):
        for parameter in module.parameters():
            count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
            parameter.data.copy_(count.mul(0.7).sin() * 0.3)
    workflow.target_policy.load_state_dict(workflow.policy.state_dict())
    workflow.target_critic.load_state_dict(workflow.critic.state_dict())
    return workflow


def fixed_batch(size=16):
    """Return a batch that owes nothing to any random stream."""
    grid = torch.arange(size * 3, dtype=torch.float32).view(size, 3)
    index = torch.arange(size, dtype=torch.float32)
    terminated = index.long() % 5 == 4
    return {
        "observations": grid.mul(0.37).sin(),
        "next_observations": grid.mul(0.37).add(0.2).sin(),
        "actions": torch.stack([index.mul(0.5).cos(), index.mul(0.9).sin()], -1) * 2,
        "rewards": index.mul(0.11).cos(),
        "terminated": terminated,
        "discounts": 0.99 * (~terminated).float(),
    }


# critic_loss and actor_loss (of every second one) of four updates on `fixed_batch`, as `Naive` computes them.
GOLDEN = [[0.398511], [0.363672, -0.246987], [0.332837], [0.30546, -0.347099]]


def test_golden_losses():
    workflow = with_fixed_parameters(make_td3(hidden=(8,), lr=0.01, target_noise=0.0))
    naive = Naive(workflow, lr=0.01)
    for expected in GOLDEN:
        for metrics in (workflow.update_agent(fixed_batch(), phase=phase()), naive.update(fixed_batch())):
            found = [float(metrics[name]) for name in ("critic_loss", "actor_loss") if name in metrics]
            assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("delay_targets", [True, False])
def test_policy_waits_and_targets_wait_with_it(delay_targets):
    workflow, batch = make_td3(policy_delay=3, delay_targets=delay_targets), random_batch(SPEC)
    moved = []
    for _ in range(6):
        before = [parameters(m) for m in (workflow.critic, workflow.policy, workflow.target_critic)]
        workflow.update_agent(batch, phase=phase())
        after = [parameters(m) for m in (workflow.critic, workflow.policy, workflow.target_critic)]
        moved.append([not torch.equal(a, b) for a, b in zip(before, after, strict=True)])
    early = [True, False, not delay_targets]
    assert moved == [early, early, [True, True, True]] * 2


@pytest.mark.parametrize(("reduction", "reduce"), [("first", None), ("min", np.minimum.reduce), ("mean", np.mean)])
def test_the_policy_climbs_the_value_it_is_told_to(reduction, reduce):
    workflow, x = shaken(make_td3(actor_reduction=reduction)), random_batch(SPEC)["observations"]
    actions = numpy_actor(workflow.policy, np.float64(x.numpy()))
    values = np.stack([numpy_critic(workflow.critic, member, x.numpy(), actions)[:, 0] for member in (0, 1)])
    climbed = values[0] if reduce is None else reduce(values, axis=0)
    critic = parameters(workflow.critic)
    metrics = workflow._descend_actor(x, None)
    assert float(metrics["actor_loss"]) == pytest.approx(-climbed.mean(), rel=1e-5)
    assert torch.equal(parameters(workflow.critic), critic)
    assert float(workflow._descend_actor(x, None)["actor_loss"]) < float(metrics["actor_loss"])


def test_distributional_policy_climbs_the_expected_return():
    workflow = shaken(make_td3(value_range=ValueRange(-1.0, 1.0, 3)))
    x = random_batch(SPEC)["observations"]
    actions = numpy_actor(workflow.policy, np.float64(x.numpy()))
    exps = np.exp(numpy_critic(workflow.critic, 0, x.numpy(), actions))
    value = (exps[:, 2] - exps[:, 0]) / exps.sum(-1)
    assert float(workflow._descend_actor(x, None)["actor_loss"]) == pytest.approx(-value.mean(), rel=1e-4)


def test_priorities_are_errors_and_rows_of_weight_0_do_not_count():
    batch = random_batch(SPEC)
    half = {key: value[:16] for key, value in batch.items()}
    weights = (torch.arange(32) < 16).float()
    whole, part = (make_td3(target_noise=0.0) for _ in range(2))
    q = [numpy_critic(whole.critic, i, batch["observations"], batch["actions"] / 2)[:, 0] for i in (0, 1)]
    targets = whole._targets(whole.perception(batch, whole.target_perception, 0.99)).numpy()
    result = whole.update_agent(batch | {"weights": weights}, phase=phase())
    assert isinstance(result, Update)
    expected = 0.5 * (np.abs(q[0] - targets) + np.abs(q[1] - targets))
    np.testing.assert_allclose(result.write_back["priorities"].numpy(), expected, rtol=1e-4, atol=1e-5)
    part.update_agent(half, phase=phase())
    torch.testing.assert_close(parameters(whole.critic), parameters(part.critic), rtol=1e-4, atol=1e-6)


def test_metrics_are_detached_scalars():
    workflow = make_td3(policy_delay=1, max_grad_norm=0.5)
    metrics = workflow.update_agent(random_batch(SPEC), phase=phase())
    assert set(metrics) == {"critic_loss", "critic_grad_norm", "q", "actor_loss", "actor_grad_norm"}
    for value in metrics.values():
        assert value.ndim == 0
        assert not value.requires_grad
        assert torch.isfinite(value)


# Acting.


def act(workflow, obs, carry=None, *, is_first=None, explore=True, step=10**6):
    first = torch.ones(len(obs), dtype=torch.bool) if is_first is None else is_first
    carry = workflow.initial_carry(len(obs)) if carry is None else carry
    with torch.inference_mode():
        return workflow.act(obs, carry, is_first=first, explore=explore, step=step)


@pytest.mark.parametrize("num_envs", [4, 100])  # in NumPy, and in torch
def test_deterministic_mode_draws_nothing(num_envs):
    workflow, obs = shaken(make_td3(noise="ou")), torch.randn(num_envs, 3)
    state = torch.get_rng_state()
    actions, extras, carry = act(workflow, obs, explore=False, step=0)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_allclose(actions.numpy(), 2 * numpy_actor(workflow.policy, obs.numpy()), rtol=1e-4, atol=1e-5)
    assert extras == {}
    assert carry["memory"] is None
    assert not carry["noise"].any()


def test_acting_follows_the_parameters_as_they_are_trained():
    workflow, obs = make_td3(lr=0.1, policy_delay=1), torch.randn(4, 3)
    for seed in range(3):
        workflow.update_agent(random_batch(SPEC, seed=seed), phase=phase())
        expected = 2 * workflow.policy(obs).detach()
        torch.testing.assert_close(act(workflow, obs, explore=False)[0], expected, rtol=1e-4, atol=1e-5)


def test_random_steps_are_uniform_and_then_the_policy_acts():
    workflow, obs = shaken(make_td3(random_steps=10, noise_std=0.05)), torch.zeros(2000, 3)
    mean = 2 * numpy_actor(workflow.policy, np.zeros((1, 3)))
    actions = act(workflow, obs, step=9)[0]
    assert float(actions.var()) == pytest.approx(4 / 3, rel=0.05)  # of a uniform draw from [-2, 2]
    assert float(actions.abs().max()) <= 2.0
    actions = act(workflow, obs, step=10)[0]
    np.testing.assert_allclose(actions.mean(0).numpy(), mean[0], atol=0.01)
    assert float(actions.std(0).mean()) == pytest.approx(0.1, rel=0.05)  # 0.05 of [-1, 1] is 0.1 of [-2, 2]


def test_each_environment_draws_its_own_noise_when_an_episode_begins():
    workflow, obs = make_td3(noise_std=0.1, noise_std_max=0.4, random_steps=1), torch.zeros(3000, 3)
    _, _, carry = act(workflow, obs, step=0)  # sizes are there even where random actions hide them
    sizes = carry["noise"]
    assert float(sizes.min()) >= 0.1
    assert float(sizes.max()) <= 0.4
    assert float(sizes.mean()) == pytest.approx(0.25, abs=0.01)
    is_first = torch.arange(3000) < 1000
    draws = []
    for _ in range(40):
        actions, _, carry = act(workflow, obs, carry, is_first=is_first)
        draws.append(actions[1000:] / 2)
        assert torch.equal(carry["noise"][1000:], sizes[1000:])
    assert not torch.isclose(carry["noise"][:1000], sizes[:1000]).all()
    spread = torch.stack(draws).std(0).mean(-1)  # of 40 draws in two dimensions; few of them beyond [-1, 1]
    assert float((spread / sizes[1000:, 0]).mean()) == pytest.approx(1.0, abs=0.02)


def test_only_the_memory_is_recorded_beside_an_action():
    env = Pendulum(3, max_episode_steps=6)

    def parts():
        return {"memory": GRU(3, 8), "actor": MLP(8, [8], "relu"), "critic": EnsembleMLP(9, [8])}

    workflow = make_td3(env.spec, parts, num_envs=3, noise="ou", policy_delay=1)
    trajectory = collect(make_collector(env), workflow, 20)
    assert trajectory["carry"].shape == workflow.perception.initial_carry(3).expand(20, -1, -1).shape
    buffer = SequenceBuffer(1000, 4, sequence_length=8, num_envs=3, spec=env.spec)
    buffer.add(trajectory)
    before = parameters(workflow.perception, workflow.policy)
    metrics = workflow.update_agent(buffer.sample(), phase=phase())
    assert all(math.isfinite(float(value)) for value in metrics.values())
    assert (parameters(workflow.perception, workflow.policy) != before).float().mean() > 0.5


# State.


def test_state_restores_networks_optimisers_and_the_turn_of_the_policy():
    first, second = make_td3(seed=1, normalize_observations=True), make_td3(seed=2, normalize_observations=True)
    first.update_agent(random_batch(SPEC), phase=phase())  # the next one is the policy's
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.set_state(copy.deepcopy(first.get_state()))
    for name in ("critics", "actors"):
        old, new = getattr(first, name).optimizer, getattr(second, name).optimizer
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    for workflow in (first, second):
        torch.manual_seed(0)
        assert "actor_loss" in workflow.update_agent(random_batch(SPEC, seed=1), phase=phase())
        workflow.update_agent(random_batch(SPEC, seed=2), phase=phase())
    assert torch.equal(parameters(first), parameters(second))


@pytest.mark.parametrize(
    "options", [{"noise": "ou"}, {"noise_std_max": 0.4, "value_range": ValueRange(-20.0, 0.0, 11)}]
)
def test_same_seed_same_parameters_other_seed_others(options):
    runs = []
    for seed in (3, 3, 4):
        env = Pendulum(4, max_episode_steps=9)
        workflow = make_td3(env.spec, seed=seed, random_steps=40, **options)
        train(workflow, env, env_steps=120, seed=seed)
        runs.append(parameters(workflow))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


# Bad input.


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (EnvSpec("x", Box((3,)), Discrete(2)), {}, "TD3 does not take the discrete actions of 'x'"),
        (EnvSpec("x", Box((3,)), Box((2,))), {}, "TD3 needs finite action bounds, those of 'x' are infinite"),
        (SPEC, {"noise_std": 0.2, "noise_std_max": 0.1}, r"algorithm\.noise_std_max: 0\.1 is less than noise_std=0\.2"),
        (SPEC, {"noise": "ou", "noise_std_max": 0.4}, r"algorithm\.noise_std_max: needs noise gaussian, not 'ou'"),
        (SPEC, {"noise": "pink"}, r"algorithm\.noise 'pink' \(choices: gaussian, ou\)"),
    ],
)
def test_wrong_options_are_one_line(spec, options, message):
    with pytest.raises(ConfigError, match=message):
        make_td3(spec, **options)


def test_both_learning_rates_fall_to_0_at_the_end_of_the_phase():
    workflow, batch = make_td3(learning_rate_schedule="linear", lr=0.01, policy_delay=1), random_batch(SPEC)
    for progress, expected in ((0.0, 0.01), (0.5, 0.005), (0.75, 0.0025), (1.0, 0.0)):
        before = [list(map(torch.clone, module.parameters())) for module in (workflow.critic, workflow.policy)]
        assert workflow.update_agent(batch, phase=phase(progress))["learning_rate"] == pytest.approx(expected)
        for old, module in zip(before, (workflow.critic, workflow.policy), strict=True):
            moved = max(
                float((new - was).detach().abs().max()) for new, was in zip(module.parameters(), old, strict=True)
            )
            assert moved == pytest.approx(expected, rel=0.2)  # about as long as Adam's learning rate
