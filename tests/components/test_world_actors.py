"""Actors of world models: the parameters they make, what they draw, and what the environment gets of it."""

import math

import numpy as np
import pytest
import torch

from rl_lab.components.layers import LayerStyle
from rl_lab.components.world_actors import WorldActor
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, MultiDiscrete
from rl_lab.ops.prior_distributions import ClippedNormal, SquashedNormal
from rl_lab.ops.world_distributions import BoundedNormal, MultiOneHot, OneHot, TanhNormal, TruncatedNormal

torch.set_num_threads(1)
CPU = torch.device("cpu")
OBSERVATION = Box((3,))
CONTINUOUS = EnvSpec("numbers", OBSERVATION, Box((2,), low=-2.0, high=6.0))
DISCRETE = EnvSpec("choice", OBSERVATION, Discrete(4))
SEVERAL = EnvSpec("choices", OBSERVATION, MultiDiscrete((3, 2)))
MIXED = EnvSpec("both", OBSERVATION, {"gear": Discrete(3), "pedals": Box((2,), low=-2.0, high=6.0)})
KINDS = {"tanh_normal": TanhNormal, "truncated_normal": TruncatedNormal, "bounded_normal": BoundedNormal}


def bound(spec=CONTINUOUS, **options):
    torch.manual_seed(0)
    actor = WorldActor(16, 2, **options)
    actor.bind(5, spec)
    return actor


def raw_outputs(actor, features):
    """Return what the last layers put out, in float64."""
    hidden = actor.trunk(features)
    return [layer(hidden).detach().double().numpy() for layer in (actor.mean, actor.std)]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_standard_deviations(kind):
    actor = bound(kind=kind, scale=3.0, min_std=0.2, max_std=0.9, init_std=4.0, mean_scale=2.0)
    features = torch.randn(7, 5)
    mean, std = raw_outputs(actor, features)
    expected = {
        "tanh_normal": (2.0 * np.tanh(mean / 2.0), np.log1p(np.exp(std + math.log(math.exp(4.0) - 1.0))) + 1e-4),
        "truncated_normal": (np.tanh(mean), 2.0 * sigmoid(std / 2.0) + 0.2),
        "bounded_normal": (np.tanh(mean), 0.7 * sigmoid(std + 2.0) + 0.2),
    }[kind]
    pi = actor(features)
    assert type(pi) is KINDS[kind]
    np.testing.assert_allclose(pi.mean.detach(), expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pi.std.detach(), expected[1], rtol=1e-5)


def test_policies_that_propose():
    actor, features = bound(kind="squashed_normal", scale=3.0), torch.randn(7, 5)
    mean, std = raw_outputs(actor, features)
    pi = actor(features)
    assert type(pi) is SquashedNormal
    np.testing.assert_allclose(pi.mean.detach(), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pi.std.detach(), np.exp(-10.0 + 6.0 * (np.tanh(std) + 1.0)), rtol=1e-4)
    actor = bound(kind="clipped_normal", scale=3.0, min_std=0.2)
    assert "std" not in dict(actor.named_children())  # it has one for all
    pi = actor(features)
    assert type(pi) is ClippedNormal
    mean = actor.mean(actor.trunk(features)).detach().double().numpy()
    np.testing.assert_allclose(pi.mean.detach(), np.tanh(mean), rtol=1e-5, atol=1e-6)
    assert torch.equal(pi.std, torch.full((7, 2), 0.2))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_shape_and_the_gradient_of_the_policy(kind):
    actor = bound(kind=kind, scale=1.0)
    pi = actor(torch.randn(3, 4, 5))
    sample = pi.sample()
    assert sample.shape == (3, 4, 2)
    assert pi.log_prob(sample).shape == pi.entropy().shape == (3, 4)
    gradients = torch.autograd.grad(sample.sum(), list(actor.parameters()))
    assert all(bool((gradient != 0.0).any()) for gradient in gradients)
    if kind != "bounded_normal":
        assert float(sample.detach().abs().max()) <= 1.0


def test_the_first_policy_is_nearly_the_same_everywhere():
    pi = bound()(10.0 * torch.randn(50, 5))
    assert float(pi.mean.detach().abs().max()) < 0.1
    assert pi.std.detach().numpy() == pytest.approx(0.9 * sigmoid(2.0) + 0.1, abs=0.02)


def test_actions_reach_the_bounds_of_the_environment_and_no_further():
    actor = bound()
    actions = torch.tensor([[-1.0, 0.0], [1.0, 0.5], [-7.0, 3.0]])
    expected = torch.tensor([[-2.0, 2.0], [6.0, 4.0], [-2.0, 6.0]])
    torch.testing.assert_close(actor.actions.to_environment(actions), expected)
    drawn = actor.actions.random(5000, CPU)
    assert drawn.shape == (5000, 2)
    assert float(drawn.min()) == pytest.approx(-1.0, abs=0.01)
    assert float(drawn.max()) == pytest.approx(1.0, abs=0.01)


def test_choices_are_one_hots_and_their_indices_go_to_the_environment():
    actor = bound(DISCRETE, scale=2.0, unimix=0.04)
    features = torch.randn(6, 5)
    pi = actor(features)
    assert type(pi) is OneHot
    logits = actor.logits(actor.trunk(features)).detach().double().numpy()
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(pi.log_probs.exp().detach(), 0.96 * probs + 0.01, rtol=1e-5)
    sample = pi.sample()
    assert torch.equal(actor.actions.to_environment(sample), sample.argmax(-1))
    counts = actor.actions.to_environment(actor.actions.random(8000, CPU)).bincount(minlength=4) / 8000
    np.testing.assert_allclose(counts, 0.25, atol=4 * 0.5 / math.sqrt(8000))


def test_several_choices():
    actor = bound(SEVERAL, scale=2.0)
    pi = actor(torch.randn(6, 5))
    assert type(pi) is MultiOneHot
    assert pi.sample().shape == (6, 5)
    actions = torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0]])
    assert actor.actions.to_environment(actions).tolist() == [[2, 0], [1, 1]]
    drawn = actor.actions.to_environment(actor.actions.random(500, CPU))
    assert {tuple(row) for row in drawn.tolist()} == {(i, j) for i in range(3) for j in range(2)}


def test_masks_forbid_choices():
    actor = bound(DISCRETE, unimix=0.5)
    mask = torch.tensor([False, True, False, False])
    assert actor.actions.to_environment(actor(torch.randn(20, 5), mask).sample()).tolist() == [1] * 20
    assert actor.actions.to_environment(actor.actions.random(20, CPU, mask.expand(20, 4))).tolist() == [1] * 20


@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE, SEVERAL, MIXED])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_can_be_drawn_for_all_steps_at_once(spec, kind):
    actor = bound(spec, kind=kind)
    pi = actor(torch.randn(4, 5))
    noise = actor.noise((3, 4), CPU)
    assert noise.shape == (3, 4, actor.actions.dim)
    assert torch.equal(pi.sample(noise[1]), pi.sample(noise[1]))
    assert not torch.equal(noise[0], noise[1])


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_choices_are_drawn_together_in_one_graph(kind):
    actor = bound(MIXED, kind=kind, scale=1.0, unimix=0.1)
    features, mask = torch.randn(4, 5), torch.tensor([True, True, False]).expand(4, 3)
    noise = actor.noise((4,), CPU)

    def step(features, noise, mask):
        pi = actor(features, mask)
        sample = pi.sample(noise)
        return sample, pi.log_prob(sample.detach())

    sample, log_prob = step(features, noise, mask)
    pi = actor(features, mask)
    assert (type(pi.parts[0]), type(pi.parts[1])) == (KINDS[kind], OneHot)
    expected = pi.parts[0].log_prob(sample[:, :2].detach()) + pi.parts[1].log_prob(sample[:, 2:])
    torch.testing.assert_close(log_prob, expected)
    assert sample[:, 2:].sum(-1).tolist() == [1.0] * 4
    assert not sample[:, 4].any()
    grads = torch.autograd.grad(sample.square().sum(), [actor.mean.weight, actor.std.weight, actor.logits.weight])
    assert all(bool(grad.any()) for grad in grads)
    traced = torch.compile(step, backend="eager", fullgraph=True)  # no branch on a value, no wait for the device
    for found, eager in zip(traced(features, noise, mask), (sample, log_prob), strict=True):
        torch.testing.assert_close(found, eager)
    taken = actor.actions.to_environment(sample.detach())
    assert torch.equal(taken["gear"], sample[:, 2:].argmax(-1))
    torch.testing.assert_close(taken["pedals"], sample[:, :2].detach().clamp(-1, 1) * 4.0 + 2.0)


def test_distributions_are_float32_also_where_layers_compute_in_less():
    with torch.autocast("cpu", torch.bfloat16):
        assert bound()(torch.randn(2, 5)).sample().dtype == torch.float32
        assert bound(DISCRETE)(torch.randn(2, 5)).sample().dtype == torch.float32


def test_what_cannot_be_built():
    with pytest.raises(ConfigError, match="bounded_normal"):
        WorldActor(8, 1, kind="normal")
    with pytest.raises(ConfigError, match="max_std"):
        WorldActor(8, 1, min_std=2.0)
    with pytest.raises(ConfigError, match="finite action bounds"):
        bound(EnvSpec("endless", OBSERVATION, Box((2,))))
    actor = bound(style=LayerStyle("elu", "none", "glorot"))
    with pytest.raises(AssertionError, match="once"):
        actor.bind(5, CONTINUOUS)
