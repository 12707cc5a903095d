"""Mixtures: densities and draws against sums written out, and against integrals."""

import math

import pytest
import torch

from rl_lab.ops.mixtures import Mixture, mixture_log_prob, mixture_sample


def mixture(*shape):
    number = torch.arange(math.prod(shape), dtype=torch.float64).view(shape)
    return Mixture((number * 1.7).sin(), (number * 0.9).cos() * 2.0, (number * 0.3).sin() - 1.0)


def test_densities_are_sums_over_normals():
    given, x = mixture(2, 3, 4), torch.linspace(-2.0, 2.0, 6, dtype=torch.float64).view(2, 3)
    found = mixture_log_prob(given, x)
    for i in range(2):
        for j in range(3):
            logits, means, log_stds = ([float(v) for v in leaf[i, j]] for leaf in given)
            total = sum(math.exp(logit) for logit in logits)
            density = sum(
                math.exp(logit) / total * math.exp(-0.5 * ((float(x[i, j]) - mean) / math.exp(log_std)) ** 2)
                / (math.exp(log_std) * math.sqrt(2.0 * math.pi))
                for logit, mean, log_std in zip(logits, means, log_stds, strict=True)
            )  # fmt: skip
            assert float(found[i, j]) == pytest.approx(math.log(density), rel=1e-12)


def test_densities_integrate_to_one():
    x = torch.linspace(-12.0, 12.0, 20_001, dtype=torch.float64)
    given = Mixture(*(leaf.expand(len(x), -1) for leaf in mixture(1, 4)))
    assert float(torch.trapezoid(mixture_log_prob(given, x).exp(), x)) == pytest.approx(1.0, abs=1e-9)


def test_numbers_far_away_have_no_density_and_a_finite_log():
    given = Mixture(torch.zeros(2), torch.zeros(2), torch.full((2,), -8.0))
    assert float(mixture_log_prob(given, torch.tensor(3.0))) == pytest.approx(-0.5 * (3.0 * math.e**8) ** 2, rel=1e-4)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 1.5])
def test_draws_have_the_moments_of_the_tempered_mixture(temperature):
    torch.manual_seed(0)
    given = Mixture(torch.tensor([0.0, 1.0]), torch.tensor([-1.0, 3.0]), torch.tensor([0.5, 1.5]).log())
    drawn = mixture_sample(Mixture(*(leaf.expand(200_000, -1) for leaf in given)), temperature)
    share = math.exp(1.0 / temperature) / (1.0 + math.exp(1.0 / temperature))
    mean = 3.0 * share - (1.0 - share)
    second = share * (9.0 + 2.25 * temperature) + (1.0 - share) * (1.0 + 0.25 * temperature)
    assert float(drawn.mean()) == pytest.approx(mean, abs=0.02)
    assert float(drawn.var()) == pytest.approx(second - mean**2, rel=0.02)
