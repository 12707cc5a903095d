"""Behaviour cloning: its losses by hand, its updates against a naive implementation, its options one by one."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.components.recurrent import GRU
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, HookCall, MultiDiscrete, Phase, flat_dim
from rl_lab.environments.identity import Identity
from rl_lab.environments.pendulum import Pendulum
from rl_lab.workflows.behavior_cloning import BehaviorCloning
from rl_lab.workflows.random_policy import RandomPolicy
from tests.workflows.off_policy import random_batch, start
from tests.workflows.parts import collect, make_collector

torch.set_num_threads(1)
NUMBERS = EnvSpec("numbers", Box((3,)), Box((2,), low=-2.0, high=2.0), 50)
CHOICES = EnvSpec("choices", Box((3,)), Discrete(4), 50)
MANY = EnvSpec("many", Box((3,)), MultiDiscrete((2, 3)), 50)
MIXED = EnvSpec("mixed", Box((3,)), {"a": Box((2,), low=0.0, high=1.0), "b": Discrete(3)}, 50)
PHASE = Phase("fit", "offline", (HookCall("update_policy", is_update=True),), "updates", 1)
LOG_TAU = math.log(2 * math.pi)


def make_bc(spec=NUMBERS, components=None, *, hidden=(16,), seed=0, lr=1e-3, static=None, **options):
    """Return an initialised workflow; the same seed gives the same parameters."""
    width = flat_dim(spec.observation) * options.get("observation_horizon", 1)
    build = components or (lambda: {"actor": MLP(width, hidden, "relu")})
    return start(BehaviorCloning(**options), spec, build, names=("policy",), seed=seed, lr=lr, static=static)


def update(workflow, batch):
    return workflow.update_policy(batch, phase=PHASE)


def parameters(workflow):
    return torch.cat([p.detach().flatten() for p in workflow.parameters()])


def shaken(workflow, seed=1):
    """Move every parameter, so that nothing is 0."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in workflow.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return workflow


def outputs(workflow, x):
    """Return what the head puts out for observations [B, D], with one hidden layer, in float64."""
    layer, head = workflow.policy.trunk[0], workflow.policy.head
    weights = [np.float64(t.detach().numpy()) for t in (layer.weight, layer.bias, head.weight, head.bias)]
    hidden = np.maximum(0.0, np.float64(x) @ weights[0].T + weights[1])
    return hidden @ weights[2].T + weights[3]


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


# Losses.


@pytest.mark.parametrize("kind", ["gaussian", "squared", "absolute"])
def test_the_loss_of_numbers_by_hand(kind):
    workflow, batch = shaken(make_bc(numbers=kind)), random_batch(NUMBERS)
    out = outputs(workflow, batch["observations"])
    target, mean = np.float64(batch["actions"]) / 2.0, np.tanh(out[:, :2])
    if kind == "gaussian":
        log_std = np.clip(out[:, 2:], -5.0, 2.0)
        losses = 0.5 * ((target - mean) / np.exp(log_std)) ** 2 + log_std + 0.5 * LOG_TAU
    else:
        losses = (target - mean) ** 2 if kind == "squared" else np.abs(target - mean)
    metrics = update(workflow, batch)
    assert float(metrics["loss"]) == pytest.approx(losses.sum(-1).mean(), rel=1e-5)
    assert float(metrics["error"]) == pytest.approx(np.abs(target - mean).mean(), rel=1e-5)
    assert "accuracy" not in metrics


def test_the_loss_of_choices_by_hand():
    workflow, batch = shaken(make_bc(CHOICES)), random_batch(CHOICES)
    logits, right = outputs(workflow, batch["observations"]), batch["actions"].numpy()
    metrics = update(workflow, batch)
    assert float(metrics["loss"]) == pytest.approx(-log_softmax(logits)[np.arange(32), right].mean(), rel=1e-5)
    assert float(metrics["accuracy"]) == pytest.approx((logits.argmax(-1) == right).mean())
    assert "error" not in metrics


def test_several_choices_and_mixed_actions_add_up():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 3, generator=generator)
    b = torch.randint(3, (32,), generator=generator)
    many = {"observations": x, "actions": torch.stack([b % 2, b], -1)}
    workflow = shaken(make_bc(MANY))
    out = outputs(workflow, x)
    first, second = log_softmax(out[:, :2]), log_softmax(out[:, 2:])
    rows = np.arange(32)
    wanted = -(first[rows, b % 2] + second[rows, b]).mean()
    metrics = update(workflow, many)
    assert float(metrics["loss"]) == pytest.approx(wanted, rel=1e-5)
    matches = (first.argmax(-1) == (b % 2).numpy()).mean() + (second.argmax(-1) == b.numpy()).mean()
    assert float(metrics["accuracy"]) == pytest.approx(matches / 2)
    mixed = {"observations": x, "actions": {"a": torch.rand(32, 2, generator=generator), "b": b}}
    workflow = shaken(make_bc(MIXED, numbers="squared"))
    out = outputs(workflow, x)
    errors = np.float64(mixed["actions"]["a"]) * 2 - 1 - np.tanh(out[:, :2])
    wanted = (errors**2).sum(-1).mean() - log_softmax(out[:, 2:])[rows, b].mean()
    assert float(update(workflow, mixed)["loss"]) == pytest.approx(wanted, rel=1e-5)


def test_forbidden_choices_have_no_probability():
    env = Identity(8, masked=True)
    workflow, generator = shaken(make_bc(env.spec, seed=2)), torch.Generator().manual_seed(0)
    obs = {"observation": torch.randn(16, 4, generator=generator), "action_mask": torch.rand(16, 4) < 0.5}
    right = torch.randint(4, (16,), generator=generator)
    obs["action_mask"][torch.arange(16), right] = True
    logits = np.where(obs["action_mask"], outputs(workflow, obs["observation"]), -1e8)
    for explore in (False, True):
        actions, _, _ = act(workflow, obs, explore=explore)
        assert obs["action_mask"][torch.arange(16), actions].all()
    found = update(workflow, {"observations": obs, "actions": right})["loss"]
    assert float(found) == pytest.approx(-log_softmax(logits)[np.arange(16), right].mean(), rel=1e-5)


def test_rows_of_weight_0_do_not_count():
    batch = random_batch(NUMBERS)
    half = {key: value[:16] for key, value in batch.items()}
    whole, part = make_bc(), make_bc()
    found = update(whole, batch | {"weights": (torch.arange(32) < 16).float()})
    wanted = update(part, half)
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parameters(whole), parameters(part), rtol=1e-4, atol=1e-6)


class Naive:
    """The same once more with plain modules, autograd and Adam, over chunks [B, C, A]."""

    def __init__(self, workflow, lr):
        self.trunk, self.head = copy.deepcopy(workflow.policy.trunk), copy.deepcopy(workflow.policy.head)
        self.optimizer = torch.optim.Adam([*self.trunk.parameters(), *self.head.parameters()], lr=lr)

    def update(self, batch, chunk=1):
        out = self.head(self.trunk(batch["observations"].flatten(1))).view(-1, chunk, 4)
        target = batch["actions"].view(-1, chunk, 2) / 2
        normal = torch.distributions.Normal(out[..., :2].tanh(), out[..., 2:].clamp(-5, 2).exp())
        losses = -normal.log_prob(target).sum(-1)
        keep = ~batch["is_pad"] if chunk > 1 else torch.ones_like(losses, dtype=torch.bool)
        loss = losses[keep].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def fixed_batch(size=16, chunk=1):
    """Return a batch that owes nothing to any random stream."""
    grid = torch.arange(size * 3, dtype=torch.float32).view(size, 3)
    index = torch.arange(size * chunk, dtype=torch.float32)
    actions = torch.stack([index.mul(0.5).cos(), index.mul(0.9).sin()], -1) * 2
    if chunk == 1:
        return {"observations": grid.mul(0.37).sin(), "actions": actions}
    is_pad = torch.arange(chunk) >= 1 + torch.arange(size)[:, None] % (chunk + 1)
    return {"observations": grid.mul(0.37).sin()[:, None], "actions": actions.view(size, chunk, 2), "is_pad": is_pad}


def with_fixed_parameters(workflow):
    for parameter in workflow.parameters():
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_(count.mul(0.7).sin() * 0.3)
    return workflow


GOLDEN = {1: [2.708511, 2.646236, 2.587557], 3: [2.505894, 2.452773, 2.403204]}  # as `Naive` computes them


@pytest.mark.parametrize("chunk", [1, 3])
def test_golden_losses(chunk):
    workflow = with_fixed_parameters(make_bc(hidden=(8,), lr=0.01, prediction_horizon=chunk))
    naive, batch = Naive(workflow, lr=0.01), fixed_batch(chunk=chunk)
    found = [(float(update(workflow, batch)["loss"]), naive.update(batch, chunk)) for _ in range(3)]
    for (ours, theirs), expected in zip(found, GOLDEN[chunk], strict=True):
        assert ours == pytest.approx(expected, rel=1e-4)
        assert theirs == pytest.approx(expected, rel=1e-4)


# Chunks and histories.


def filled(spec, history, chunk, steps=120, seed=3):
    """Return an episode buffer with what a random policy did in Pendulum."""
    env = Pendulum(3, max_episode_steps=17)
    workflow = start(RandomPolicy(), env.spec, dict)
    buffer = EpisodeBuffer(2000, 32, history=history, chunk_length=chunk, num_envs=3, spec=spec or env.spec, seed=seed)
    buffer.add(collect(make_collector(env), workflow, steps))
    return env, buffer


def test_chunks_learn_only_from_steps_within_the_episode():
    env, buffer = filled(None, 2, 5)
    workflow, batch = shaken(make_bc(env.spec, observation_horizon=2, prediction_horizon=5)), buffer.sample()
    out = outputs(workflow, batch["observations"].flatten(1)).reshape(32, 5, 2)
    target, total, count = np.float64(batch["actions"]) / 2.0, 0.0, 0
    for row in range(32):
        for step in range(5):
            if not batch["is_pad"][row, step]:
                mean, log_std = np.tanh(out[row, step, 0]), np.clip(out[row, step, 1], -5, 2)
                total += 0.5 * ((target[row, step, 0] - mean) / np.exp(log_std)) ** 2 + log_std + 0.5 * LOG_TAU
                count += 1
    assert 0 < count < 32 * 5
    assert float(update(workflow, batch)["loss"]) == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("decay", [None, 0.1])
def test_chunks_are_done_one_after_another_or_their_mean(decay):
    env, _ = filled(None, 2, 4)
    horizon = {"action_horizon": 3} if decay is None else {"ensemble_decay": decay}
    workflow = shaken(make_bc(env.spec, numbers="absolute", observation_horizon=2, prediction_horizon=4, **horizon))
    trajectory = collect(make_collector(env), workflow, 16)  # one episode is longer
    obs = trajectory["observations"].numpy()
    plans = []
    for t in range(16):
        seen = np.concatenate([obs[max(0, t - 1)], obs[t]], -1)
        plans.append(2.0 * np.tanh(outputs(workflow, seen).reshape(3, 4)))
        if decay is None:
            wanted = plans[t - t % 3][:, t % 3]
        else:
            speaking = [plans[s][:, t - s] for s in range(max(0, t - 3), t + 1)]
            weights = np.exp(-decay * np.arange(len(speaking)))
            wanted = sum(w * plan for w, plan in zip(weights, speaking, strict=True)) / weights.sum()
        np.testing.assert_allclose(trajectory["actions"][t, :, 0].numpy(), wanted, rtol=1e-3, atol=1e-4)


def test_chunks_of_one_action_are_single_actions():
    env, buffer = filled(None, 1, 1)
    batch = buffer.sample()
    one, other = (shaken(make_bc(env.spec)) for _ in range(2))
    plain = {"observations": batch["observations"][:, 0], "actions": batch["actions"][:, 0]}
    assert float(update(one, batch)["loss"]) == pytest.approx(float(update(other, plain)["loss"]), rel=1e-6)


def test_a_buffer_with_other_chunks_is_one_line():
    env, buffer = filled(None, 2, 5)
    workflow = make_bc(env.spec, observation_horizon=2, prediction_horizon=6)
    with pytest.raises(ConfigError, match="the workflow learns chunks of 6 actions, its buffer has chunk_length=5"):
        update(workflow, buffer.sample())


# Memory.


def recurrent(spec, seed=0, **options):
    dim = flat_dim(spec.observation)
    return make_bc(spec, lambda: {"memory": GRU(dim, 8), "actor": MLP(8, [8], "relu")}, seed=seed, **options)


def test_a_memory_learns_from_sequences_what_was_done_at_each_step():
    env = Pendulum(3, max_episode_steps=7)
    workflow = shaken(recurrent(env.spec, numbers="squared"))
    buffer = SequenceBuffer(1000, 4, sequence_length=10, num_envs=3, spec=env.spec)
    buffer.add(collect(make_collector(env), workflow, 40))
    batch = buffer.sample()
    total, count, cell = 0.0, 0, workflow.perception.memory.cell
    with torch.no_grad():
        for row in range(4):
            carry = batch["carry"][row, :1]
            for t in range(9):
                carry = carry * (~batch["is_first"][row, t])
                carry = cell(batch["observations"][row, t][None], carry)
                out = workflow.policy.head(workflow.policy.trunk(carry))
                if not batch["is_first"][row, t + 1]:
                    total += float((batch["actions"][row, t + 1, 0] / 2 - out[0, 0].tanh()) ** 2)
                    count += 1
    assert count < 4 * 9  # an episode began on the way
    assert float(update(workflow, batch)["loss"]) == pytest.approx(total / count, rel=1e-4)


def test_demonstrations_of_others_begin_with_an_empty_memory():
    env = Pendulum(3, max_episode_steps=7)
    one, other = (shaken(recurrent(env.spec)) for _ in range(2))
    buffer = SequenceBuffer(1000, 4, sequence_length=10, num_envs=3, spec=env.spec)
    buffer.add(collect(make_collector(env), one, 40))
    batch = dict(buffer.sample())
    recorded = {**batch, "carry": torch.zeros_like(batch.pop("carry"))}
    assert float(update(one, batch)["loss"]) == float(update(other, recorded)["loss"])


def test_a_buffer_that_does_not_fit_the_memory_is_one_line():
    env = Pendulum(3)
    sequences = SequenceBuffer(1000, 4, sequence_length=5, num_envs=3, spec=env.spec)
    sequences.add(collect(make_collector(env), recurrent(env.spec), 20))
    with pytest.raises(ConfigError, match=r"^phase 'fit': sequences need components\.memory"):
        update(make_bc(env.spec), sequences.sample())
    with pytest.raises(ConfigError, match=r"^phase 'fit': components\.memory needs sequences"):
        update(recurrent(env.spec), random_batch(env.spec))


def test_only_the_memory_is_recorded_beside_an_action():
    env = Pendulum(3)
    trajectory = collect(make_collector(env), recurrent(env.spec), 5)
    assert trajectory["carry"].shape == (5, 3, 8)
    plain = collect(make_collector(env), make_bc(env.spec), 5)
    assert "carry" not in plain


# Acting.


def act(workflow, obs, carry=None, *, explore=True):
    size = len(obs) if isinstance(obs, torch.Tensor) else len(obs["observation"])
    is_first = torch.ones(size, dtype=torch.bool)
    carry = workflow.initial_carry(size) if carry is None else carry
    with torch.inference_mode():
        return workflow.act(obs, carry, is_first=is_first, explore=explore, step=0)


@pytest.mark.parametrize("num_envs", [4, 100])  # in NumPy, and in torch
@pytest.mark.parametrize("kind", ["gaussian", "squared"])
def test_deterministic_mode_draws_nothing(num_envs, kind):
    workflow, obs = shaken(make_bc(numbers=kind)), torch.randn(num_envs, 3)
    state = torch.get_rng_state()
    actions, extras, _ = act(workflow, obs, explore=False)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_allclose(actions.numpy(), 2 * np.tanh(outputs(workflow, obs)[:, :2]), rtol=1e-4, atol=1e-5)
    assert extras == {}


def test_exploring_samples_the_distribution():
    workflow = make_bc(hidden=())
    workflow.policy.head.weight.data.zero_()
    workflow.policy.head.bias.data.copy_(torch.tensor([0.2, -0.1, -2.0, -1.5]))
    actions, _, _ = act(workflow, torch.zeros(20_000, 3))
    np.testing.assert_allclose(actions.mean(0).numpy(), 2 * np.tanh([0.2, -0.1]), atol=0.02)
    np.testing.assert_allclose(actions.std(0).numpy(), 2 * np.exp([-2.0, -1.5]), rtol=0.03)
    certain = make_bc(numbers="squared")
    assert torch.equal(act(certain, torch.ones(5, 3))[0], act(certain, torch.ones(5, 3), explore=False)[0])


def test_acting_follows_the_parameters_as_they_are_trained():
    workflow, obs = make_bc(lr=0.1), torch.randn(4, 3)
    for seed in range(3):
        update(workflow, random_batch(NUMBERS, seed=seed))
        wanted = 2 * np.tanh(outputs(workflow, obs)[:, :2])
        np.testing.assert_allclose(act(workflow, obs, explore=False)[0].numpy(), wanted, rtol=1e-4, atol=1e-5)


# State.


def test_state_restores_networks_normaliser_and_optimiser():
    first, second = (make_bc(seed=seed, normalize_observations=True) for seed in (1, 2))
    update(first, random_batch(NUMBERS))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.learner.optimizer.load_state_dict(copy.deepcopy(first.learner.optimizer.state_dict()))
    for workflow in (first, second):
        update(workflow, random_batch(NUMBERS, seed=1))
    assert torch.equal(parameters(first), parameters(second))
    assert torch.equal(first.perception.normalizer.mean, second.perception.normalizer.mean)


def test_same_seed_same_parameters_other_seed_others():
    runs = []
    for seed in (3, 3, 4):
        env = Pendulum(4, max_episode_steps=9)
        workflow = make_bc(env.spec, seed=seed)
        buffer = ReplayBuffer(1000, 16, num_envs=4, spec=env.spec, seed=seed)
        collector = make_collector(env, seed)
        for _ in range(10):
            buffer.add(collect(collector, workflow, 4))
            update(workflow, buffer.sample())
        runs.append(parameters(workflow))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_metrics_are_detached_scalars():
    for value in update(make_bc(max_grad_norm=0.5), random_batch(NUMBERS)).values():
        assert value.ndim == 0
        assert not value.requires_grad


# Bad input.


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (NUMBERS, {"action_horizon": 2}, r"^algorithm\.action_horizon: 2 actions are more than prediction_horizon=1"),
        (NUMBERS, {"prediction_horizon": 4, "action_horizon": 2, "ensemble_decay": 0.1}, r"^algorithm\.ensemble_decay"),
        (NUMBERS, {"numbers": "cubed"}, r"algorithm\.numbers 'cubed' \(choices: absolute, gaussian, squared\)"),
        (NUMBERS, {"ensemble_decay": 0.1}, r"needs action_horizon=1 and chunks of 2 or more, not 1 and 1$"),
        (
            NUMBERS,
            {"prediction_horizon": 51},
            r"^algorithm\.prediction_horizon: 51 steps are longer than any episode of 'numbers' \(50 steps\)$",
        ),
        (
            NUMBERS,
            {"observation_horizon": 51},
            r"^algorithm\.observation_horizon: 51 steps are longer than any episode of 'numbers' \(50 steps\)$",
        ),
        (EnvSpec("x", Box((3,)), Box((2,))), {}, "BehaviorCloning needs finite action bounds, those of 'x' are infini"),
        (Identity(1, masked=True).spec, {"prediction_horizon": 2}, "an action_mask is known for one step only"),
    ],
)
def test_wrong_options_are_one_line(spec, options, message):
    with pytest.raises(ConfigError, match=message):
        make_bc(spec, **options)


@pytest.mark.parametrize(
    ("components", "options", "message"),
    [
        (lambda: {"actor": MLP(3, [8])}, {"observation_horizon": 2}, r"must be 6 \(2 x 3 features\), not 3$"),
        (lambda: {"actor": EnsembleMLP(3, [8])}, {}, r"components\.actor: needs one network"),
        (
            lambda: {"actor": MLP(16, [8]), "memory": GRU(3, 8)},
            {"observation_horizon": 2},
            r"^components\.memory: goes with observation_horizon=1 and prediction_horizon=1",
        ),
    ],
)
def test_wrong_components_are_one_line(components, options, message):
    with pytest.raises(ConfigError, match=message):
        make_bc(NUMBERS, components, **options)


def test_pictures_need_an_encoder():
    spec = EnvSpec("pictures", Box((3, 8, 8), torch.uint8), Discrete(2), 50)
    with pytest.raises(ConfigError, match="images need one"):
        make_bc(spec, lambda: {"actor": nn.Identity()})
