"""Beliefs over latent states: KL, entropy, samples and their gradients against NumPy in float64."""

import numpy as np
import pytest
import torch

from rl_lab.components.latents import CategoricalLatent, GaussianLatent, latent_space
from rl_lab.core import ConfigError


def raw(space, *shape, seed=0):
    return torch.randn(*shape, space.num_params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gaussian_kl_and_entropy():
    space = GaussianLatent(5, min_std=0.1)
    left, right = (space.belief(raw(space, 4, seed=seed)).double().numpy() for seed in (1, 2))
    (m1, s1), (m2, s2) = (np.split(belief, 2, -1) for belief in (left, right))
    expected = (np.log(s2 / s1) + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5).sum(-1)
    np.testing.assert_allclose(space.kl(torch.tensor(left), torch.tensor(right)), expected, rtol=1e-9)
    entropy = (0.5 * np.log(2 * np.pi * np.e * s1**2)).sum(-1)
    np.testing.assert_allclose(space.entropy(torch.tensor(left)), entropy, rtol=1e-9)
    outputs = raw(space, 4, seed=1).numpy()
    np.testing.assert_allclose(s1, np.log1p(np.exp(outputs[:, 5:])) + 0.1, rtol=1e-6)


def test_categorical_beliefs_are_mixed_with_the_uniform_one():
    space = CategoricalLatent(3, 4, unimix=0.01)
    outputs = raw(space, 2)
    logits = outputs.numpy().reshape(2, 3, 4)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    belief = space.belief(outputs)
    np.testing.assert_allclose(belief.exp(), 0.99 * probs + 0.01 / 4, rtol=1e-5)
    other = space.belief(raw(space, 2, seed=1)).double()
    p, q = belief.double().exp().numpy(), other.exp().numpy()
    np.testing.assert_allclose(space.kl(belief.double(), other), (p * np.log(p / q)).sum((-2, -1)), rtol=1e-5)
    np.testing.assert_allclose(space.entropy(belief.double()), -(p * np.log(p)).sum((-2, -1)), rtol=1e-6)


def test_categorical_samples_are_one_hots_as_likely_as_the_belief_says():
    space = CategoricalLatent(2, 3, unimix=0.0)
    torch.manual_seed(0)
    belief = space.belief(torch.tensor([[2.0, 0.0, -1.0, 0.0, 1.0, 0.5]])).expand(20_000, 2, 3)
    drawn = space.sample(belief, space.noise((20_000,), torch.device("cpu"))).unflatten(-1, (2, 3))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert (drawn.sum(-1) == 1.0).all()
    torch.testing.assert_close(drawn.mean(0), belief[0].exp(), atol=0.015, rtol=0.0)


def test_the_gradient_of_a_one_hot_is_that_of_its_probabilities():
    space = CategoricalLatent(2, 3, unimix=0.01)
    outputs = raw(space, 4).float().requires_grad_()
    weights = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    noise = space.noise((4,), torch.device("cpu"))
    (found,) = torch.autograd.grad((space.sample(space.belief(outputs), noise) * weights).sum(), outputs)
    (expected,) = torch.autograd.grad((space.belief(outputs).exp().flatten(-2) * weights).sum(), outputs)
    torch.testing.assert_close(found, expected)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="latent 'discrete'"):
        latent_space("discrete", 4, 4, 0.01, 0.1)
