"""Distributions of policies that propose: samples and bonuses against float64 NumPy."""

import math

import numpy as np
import torch

from rl_lab.ops.prior_distributions import ClippedNormal, SquashedNormal, entropy_of_used
from rl_lab.ops.world_distributions import Joint, OneHot

GENERATOR = torch.Generator().manual_seed(0)
MEAN, STD = torch.randn(50, 3, generator=GENERATOR), torch.rand(50, 3, generator=GENERATOR) + 0.1
NOISE = torch.randn(50, 3, generator=GENERATOR) * 2.0


def test_squashed_normals():
    pi = SquashedNormal(MEAN, STD)
    expected = np.tanh(MEAN.double().numpy() + STD.double().numpy() * NOISE.double().numpy())
    np.testing.assert_allclose(pi.sample(NOISE), expected, atol=1e-6)
    np.testing.assert_allclose(pi.mode(), np.tanh(MEAN.double().numpy()), atol=1e-6)
    entropy = (np.log(STD.double().numpy()) + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    np.testing.assert_allclose(pi.entropy(), 3 * entropy, rtol=1e-5, atol=1e-5)  # times the numbers of an action


def test_the_bonus_counts_only_numbers_that_a_task_uses():
    used = (torch.arange(3) < torch.tensor([1, 2, 3, 1, 3]).repeat(10)[:, None]).float()
    each, mask = np.log(STD.double().numpy()) + 0.5 * math.log(2 * math.pi * math.e), used.bool().numpy()
    expected = [row[own].sum() * own.sum() for row, own in zip(each, mask, strict=True)]
    pi, other = SquashedNormal(MEAN, STD), OneHot(MEAN)
    np.testing.assert_allclose(entropy_of_used(pi, used), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy_of_used(pi, None), pi.entropy())
    torch.testing.assert_close(entropy_of_used(other, used), other.entropy())
    both = entropy_of_used(Joint(pi, other), torch.cat([used, torch.ones(50, 3)], -1))
    np.testing.assert_allclose(both, expected + other.entropy().numpy(), rtol=1e-5, atol=1e-5)


def test_noise_of_clipped_normals_is_cut_and_so_are_actions_but_not_gradients():
    mean = MEAN.tanh().requires_grad_()
    actions = ClippedNormal(mean, STD).sample(NOISE)
    noise = np.minimum(0.3, np.maximum(-0.3, STD.double().numpy() * NOISE.double().numpy()))
    expected = np.tanh(MEAN.double().numpy()) + noise
    assert (np.abs(expected) > 1.0).any()
    assert (np.abs(noise) == 0.3).any()
    np.testing.assert_allclose(actions.detach(), np.clip(expected, -1.0, 1.0), atol=2e-6)
    assert float(actions.detach().abs().max()) < 1.0
    actions.sum().backward()
    assert torch.equal(mean.grad, torch.ones(50, 3))
    torch.testing.assert_close(ClippedNormal(mean, STD).mode(), mean)
