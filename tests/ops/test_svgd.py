"""Stein directions against loops written from the formula, and against the density that they are to reach."""

import math

import pytest
import torch

from rl_lab.ops.svgd import adaptive_kernel, stein_direction

torch.set_num_threads(1)


def naive_bandwidth(fixed, moved):
    """Return `max(median / log J, 1e-3)`; the median is the (J I // 2 + 1)-th largest squared distance."""
    distances = [sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for a in fixed for b in moved]
    median = sorted(distances, reverse=True)[len(fixed) * len(moved) // 2]
    return max(median / math.log(len(fixed)), 1e-3)


def naive_direction(fixed, moved, scores):
    """Return the mean over j of `k(a_j, a_i) score_j - 2 (a_j - a_i) / h k(a_j, a_i)` for each i, in plain floats."""
    h = naive_bandwidth(fixed, moved)
    directions = []
    for a_i in moved:
        total = [0.0] * len(a_i)
        for a_j, score in zip(fixed, scores, strict=True):
            kernel = math.exp(-sum((x - y) ** 2 for x, y in zip(a_j, a_i, strict=True)) / h)
            for d in range(len(a_i)):
                total[d] += kernel * score[d] - 2.0 * (a_j[d] - a_i[d]) / h * kernel
        directions.append([number / len(fixed) for number in total])
    return directions


@pytest.mark.parametrize(("num_fixed", "num_moved", "dim"), [(8, 8, 2), (16, 16, 1), (3, 5, 4), (2, 1, 3)])
def test_direction_is_that_of_the_formula(num_fixed, num_moved, dim):
    generator = torch.Generator().manual_seed(num_fixed)

    def draw(count):
        return torch.randn(4, count, dim, generator=generator, dtype=torch.float64)

    fixed, moved, scores = draw(num_fixed), draw(num_moved), draw(num_fixed)
    found = stein_direction(fixed, moved, scores)
    _, bandwidths = adaptive_kernel(fixed, moved)
    for state in range(4):  # each has a bandwidth of its own
        lists = [part[state].tolist() for part in (fixed, moved, scores)]
        assert float(bandwidths[state]) == pytest.approx(naive_bandwidth(*lists[:2]))
        expected = torch.tensor(naive_direction(*lists), dtype=torch.float64)
        torch.testing.assert_close(found[state], expected)


def test_kernel_by_hand():
    # Squared distances 0, 1, 4, 9: the third largest is 1, and log 2 divides it.
    kernel, bandwidth = adaptive_kernel(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [-2.0]]))
    assert float(bandwidth) == pytest.approx(1.0 / math.log(2.0))
    assert kernel.flatten().tolist() == pytest.approx([1.0, 2.0**-4, 2.0**-1, 2.0**-9])


def test_particles_in_one_place_have_the_smallest_bandwidth():
    same = torch.full((4, 2), 0.3)
    kernel, bandwidth = adaptive_kernel(same, same)
    assert float(bandwidth) == pytest.approx(1e-3)
    assert torch.equal(kernel, torch.ones(4, 4))


def test_particles_become_samples_of_the_density():
    particles = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) - 2.0
    mean, std = 1.0, 0.5
    for _ in range(800):
        particles = particles + 0.1 * stein_direction(particles, particles, (mean - particles) / std**2)
    assert float(particles.mean()) == pytest.approx(mean, abs=0.02)
    assert float(particles.std()) == pytest.approx(std, rel=0.1)
