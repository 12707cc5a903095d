"""Distributions of returns against loops written from the papers."""

import math

import pytest
import torch

from rl_lab.ops.distributional import cross_entropy, project, quantile_huber

SUPPORT = torch.linspace(-2.0, 2.0, 9)


def naive_projection(probs, positions, low=-2.0, high=2.0, count=9):
    """Algorithm 1 of Bellemare et al., 2017: share each mass between the atoms below and above it."""
    spacing, mass = (high - low) / (count - 1), [0.0] * count
    for p, z in zip(probs, positions, strict=True):
        place = (min(max(z, low), high) - low) / spacing
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            mass[below] += p
        else:
            mass[below] += p * (above - place)
            mass[above] += p * (place - below)
    return mass


def test_projection_is_that_of_the_paper():
    torch.manual_seed(0)
    probs = torch.rand(20, 9).softmax(-1)
    positions = torch.randn(20, 1) + 0.9 * SUPPORT * torch.rand(20, 1) * 1.5
    found = project(probs, positions, SUPPORT)
    expected = [naive_projection(p, z) for p, z in zip(probs.tolist(), positions.tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.sum(-1), torch.ones(20))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0.0, {4: 1.0}),  # on an atom
        (0.125, {4: 0.75, 5: 0.25}),  # a quarter of the way
        (5.0, {8: 1.0}),  # outside
        (-5.0, {0: 1.0}),
    ],
)
def test_a_point_goes_to_its_neighbours(position, expected):
    found = project(torch.ones(1, 1), torch.full((1, 1), position), SUPPORT)[0]
    assert {index: pytest.approx(mass) for index, mass in expected.items()} == {
        index: float(mass) for index, mass in enumerate(found) if mass > 0
    }


def test_projection_keeps_the_mean_within_the_atoms():
    probs = torch.tensor([[0.2, 0.3, 0.5]])
    positions = torch.tensor([[-1.3, 0.4, 1.77]])
    mean = float((project(probs, positions, SUPPORT) * SUPPORT).sum())
    assert mean == pytest.approx(0.2 * -1.3 + 0.3 * 0.4 + 0.5 * 1.77, rel=1e-5)


def test_cross_entropy():
    logits, probs = torch.tensor([[1.0, 2.0, 0.5]]), torch.tensor([[0.1, 0.6, 0.3]])
    log_sum = math.log(math.exp(1.0) + math.exp(2.0) + math.exp(0.5))
    expected = -(0.1 * (1.0 - log_sum) + 0.6 * (2.0 - log_sum) + 0.3 * (0.5 - log_sum))
    assert float(cross_entropy(logits, probs)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("threshold", [1.0, 0.4])
def test_quantile_loss_is_that_of_the_paper(threshold):
    torch.manual_seed(0)
    quantiles, targets = 2 * torch.randn(6, 5), 2 * torch.randn(6, 7)
    expected = []
    for row in range(6):
        total = 0.0
        for i in range(5):
            for j in range(7):
                error = float(targets[row, j] - quantiles[row, i])
                size = abs(error)
                huber = 0.5 * error**2 if size <= threshold else threshold * (size - 0.5 * threshold)
                total += abs((i + 0.5) / 5 - (error < 0)) * huber / threshold / 7
        expected.append(total)
    assert quantile_huber(quantiles, targets, threshold).tolist() == pytest.approx(expected, rel=1e-4)


def test_quantile_regression_finds_the_quantiles():
    # Of the numbers 0 to 99 the quantiles 1/8, 3/8, 5/8, 7/8 are about 12, 37, 62 and 87.
    targets = torch.arange(100.0)[None]
    quantiles = torch.full((1, 4), 50.0, requires_grad=True)
    optimizer = torch.optim.SGD([quantiles], lr=20.0)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_huber(quantiles, targets).sum().backward()
        optimizer.step()
    assert quantiles[0].tolist() == pytest.approx([12.0, 37.0, 62.0, 87.0], abs=1.5)
