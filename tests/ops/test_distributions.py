"""Log-probabilities and entropies against torch.distributions, samples against their probabilities."""

import math

import pytest
import torch
from torch import distributions as td

from rl_lab.ops.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
    gumbel_perturbed,
    masked_logits,
    tanh_log_det,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_categorical():
    logits, actions = torch.randn(5, 7, 4), torch.randint(4, (5, 7))
    ours, theirs = Categorical(logits), td.Categorical(logits=logits)
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), logits.argmax(-1))
    assert ours.sample().shape == (5, 7)
    assert ours.sample().dtype == torch.int64


def test_categorical_samples_follow_the_probabilities():
    probs = torch.tensor([0.1, 0.2, 0.7])
    samples = Categorical(probs.log().expand(40_000, 3)).sample()
    frequencies = samples.bincount(minlength=3) / 40_000
    assert torch.allclose(frequencies, probs, atol=4 * 0.5 / 200)  # four standard errors at the widest


def test_masked_actions_are_never_drawn_and_have_no_entropy():
    mask = torch.tensor([True, False, True, False])
    masked = Categorical(masked_logits(torch.tensor([0.0, 50.0, 0.0, 50.0]).expand(5000, 4), mask))
    assert set(masked.sample().unique().tolist()) == {0, 2}
    torch.testing.assert_close(masked.entropy(), torch.full((5000,), math.log(2.0)))
    logits = torch.zeros(2, 3, requires_grad=True)
    Categorical(masked_logits(logits, torch.tensor([True, True, False]))).entropy().sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert masked_logits(logits, None) is logits


def test_gumbel_noise_cannot_lift_a_masked_logit():
    noise = gumbel_perturbed(torch.zeros(100_000))
    assert noise.isfinite().all()
    assert noise.max() < 100


def test_multi_categorical():
    nvec, logits = (3, 2, 4), torch.randn(6, 9)
    parts = [td.Categorical(logits=part) for part in logits.split(nvec, -1)]
    ours = MultiCategorical(logits, nvec)
    actions = ours.sample()
    assert actions.shape == (6, 3)
    expected = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(ours.log_prob(actions), expected)
    torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in parts))
    assert torch.equal(ours.mode(), torch.stack([part.logits.argmax(-1) for part in parts], -1))


@pytest.mark.parametrize("std_shape", [(3,), (6, 3)])
def test_diagonal_gaussian(std_shape):
    mean, log_std = torch.randn(6, 3), torch.randn(std_shape) * 0.5
    ours, theirs = DiagonalGaussian(mean, log_std), td.Independent(td.Normal(mean, log_std.exp().expand(6, 3)), 1)
    actions = ours.sample()
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert ours.mode() is mean


def test_gaussian_samples_have_the_right_moments():
    samples = DiagonalGaussian(torch.full((100_000, 1), 2.0), torch.tensor([math.log(3.0)])).sample()
    assert abs(float(samples.mean()) - 2.0) < 0.04  # four standard errors
    assert abs(float(samples.std()) - 3.0) < 0.04


def test_squashed_gaussian_log_prob():
    mean, log_std, latents = torch.randn(6, 3).double(), torch.randn(3).double() * 0.3, torch.randn(6, 3).double()
    base = td.Independent(td.Normal(mean, log_std.exp().expand(6, 3)), 1)
    theirs = td.TransformedDistribution(base, td.TanhTransform(cache_size=1))
    torch.testing.assert_close(
        SquashedGaussian(mean, log_std).log_prob(latents), theirs.log_prob(latents.tanh()), rtol=1e-6, atol=1e-8
    )


def test_squashed_entropy_is_right_on_average():
    # mean 0, std 1: the entropy of tanh(u) is that of u plus E[log(1 - tanh(u)^2)], here by quadrature.
    u = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    density = td.Normal(0.0, 1.0).log_prob(u).exp()
    expected = 0.5 * math.log(2 * math.pi * math.e) + float((density * tanh_log_det(u)).sum() * 1e-4)
    estimate = SquashedGaussian(torch.zeros(100_000, 1), torch.zeros(1)).entropy().mean()
    assert abs(float(estimate) - expected) < 0.02


def test_tanh_log_det_stays_exact_where_tanh_saturates():
    u = torch.tensor([-40.0, -3.0, 0.0, 0.5, 3.0, 40.0])
    exact = [2 * (math.log(2.0) - abs(x) - math.log1p(math.exp(-2 * abs(x)))) for x in u.tolist()]
    torch.testing.assert_close(tanh_log_det(u), torch.tensor(exact))
