"""CMA-ES against the package `cma`: the same state from the same candidates, and as few evaluations to an optimum."""

import math

import pytest
import torch

from rl_lab.ops.cma_es import search_candidates, search_rates, start_search, updated_search

# Made by cma 4.5.0 with NumPy 2.4.6: CMAEvolutionStrategy from 0.5 with sigma 0.4 and its covariance set to exactly the
# identity, `adapt_sigma.cs` and `damps` to those of the tutorial (table 1). Each generation was told
# `mean + sigma * fixed_steps` with the costs of `valley` (check_points=False), and decomposed its covariance at once.
# In the second case the path of the step size gets so long that the covariance waits for it.
CMA = {
    (3, 8, 1): {
        "mean": [0.13768039, 0.23353088, 0.28064435],
        "sigma": 0.40513144,
        "covariance": [
            [1.26178852, 0.1611629, 0.08467366],
            [0.1611629, 1.02231851, -0.10531872],
            [0.08467366, -0.10531872, 0.71848277],
        ],
        "sigma_path": [-1.20410402, -0.88556216, -0.72898902],
        "mean_path": [-1.30964716, -0.9631842, -0.79288698],
    },
    (3, 8, 6): {
        "mean": [0.58342982, 3.50682398, 0.61152375],
        "sigma": 1.27436169,
        "covariance": [
            [2.67273707, -0.00257605, -0.02093556],
            [-0.00257605, 3.28083479, -0.31333224],
            [-0.02093556, -0.31333224, 0.18441151],
        ],
        "sigma_path": [0.50958489, 2.26810375, 1.36011154],
        "mean_path": [0.53543195, 1.50778403, 0.07108416],
    },
    (5, 4, 6): {
        "mean": [1.0591474, 1.19680689, -1.09017502, 0.1805, 0.26720156],
        "sigma": 0.52708645,
        "covariance": [
            [1.36611383, 0.33053034, 0.20676186, 0.08787315, -0.14000598],
            [0.33053034, 1.11498356, 0.13673769, 0.01454187, -0.18004138],
            [0.20676186, 0.13673769, 1.39673852, 0.00227033, -0.11737064],
            [0.08787315, 0.01454187, 0.00227033, 0.92586067, -0.07388841],
            [-0.14000598, -0.18004138, -0.11737064, -0.07388841, 0.87636699],
        ],
        "sigma_path": [0.23791397, 0.530489, -1.63142379, -0.65090627, -0.27989718],
        "mean_path": [-1.12255645, -0.92800657, -1.94922281, -0.53576073, 0.09245157],
    },
}


def fixed_steps(generation, population, dim):
    """Return steps in units of sigma that owe nothing to a random stream."""
    number = torch.arange(population * dim, dtype=torch.float64) + 1 + 100 * generation
    return ((number * 12.9898).sin() * 2.0 + (number * 4.1414).cos()).view(population, dim)


def valley(x):
    return (10.0 ** torch.arange(x.shape[-1]) * (x - 0.3).square()).sum(-1)


@pytest.mark.parametrize("case", CMA)
def test_the_state_is_that_of_the_package(case):
    dim, population, generations = case
    state = start_search(torch.full((dim,), 0.5, dtype=torch.float64), 0.4)
    for generation in range(generations):
        candidates = state.mean + state.sigma * fixed_steps(generation, population, dim)
        state = updated_search(state, candidates, valley(candidates))
    for name, expected in CMA[case].items():
        torch.testing.assert_close(
            state._asdict()[name], torch.tensor(expected, dtype=torch.float64), atol=1e-7, rtol=0, msg=name
        )
    assert float(state.generation) == generations
    rebuilt = state.axes @ torch.diag(state.scales.square()) @ state.axes.T
    torch.testing.assert_close(rebuilt, state.covariance)


def test_the_constants_are_those_of_the_package():
    """Of `cma` for 3 dimensions and 8 candidates, but for the path of the step size, which is the tutorial's."""
    rates = search_rates(3, 8)
    weights = [0.529930184, 0.285714286, 0.142857143, 0.041498387, -0.153893974, -0.420200463, -0.645359391]
    assert rates.weights == pytest.approx([*weights, -0.840400926], abs=1e-9)
    assert (rates.num_parents, rates.mass) == (4, pytest.approx(2.60017882611318))
    assert rates.rank_one == pytest.approx(0.09483086969009787)
    assert rates.rank_mu == pytest.approx(0.0894753448345498)
    assert rates.mean_path == pytest.approx(0.5572511268704967)
    assert rates.sigma_path == pytest.approx((2.60017882611318 + 2) / (3 + 2.60017882611318 + 5))
    assert rates.length == pytest.approx(1.5957691216057308)  # sqrt(2) Gamma(2) / Gamma(1.5) = sqrt(8 / pi)
    assert rates.length == pytest.approx(math.sqrt(8 / math.pi))


def rosenbrock(x):
    return (100.0 * (x[..., 1:] - x[..., :-1].square()).square() + (1.0 - x[..., :-1]).square()).sum(-1)


def ellipsoid(x):
    dim = x.shape[-1]
    return (10.0 ** (6.0 * torch.arange(dim, dtype=x.dtype) / (dim - 1)) * x.square()).sum(-1)


@pytest.mark.parametrize(
    ("cost", "dim", "begin", "sigma", "evaluations"),
    [(rosenbrock, 6, 0.0, 0.3, 2436), (ellipsoid, 8, 1.0, 0.5, 3012)],  # medians of `cma` 4.5.0 over seeds 1 to 11
)
def test_optima_are_found_in_as_few_evaluations_as_by_the_package(cost, dim, begin, sigma, evaluations):
    generator = torch.Generator().manual_seed(1)
    state = start_search(torch.full((11, dim), begin, dtype=torch.float64), sigma)  # 11 searches at once
    needed = torch.zeros(11)
    while not needed.all():
        noise = torch.randn(11, 12, dim, generator=generator, dtype=torch.float64)
        candidates = search_candidates(state, noise)
        costs = cost(candidates)
        state = updated_search(state, candidates, costs)
        is_there = (costs.amin(-1) <= 1e-9) & (needed == 0)
        needed[is_there] = 12.0 * float(state.generation)
        assert float(state.generation) < 600
    assert float(needed.median()) == pytest.approx(evaluations, rel=0.12)


def test_a_batch_is_several_searches():
    noise = torch.stack([fixed_steps(seed, 6, 4) for seed in range(3)])
    starts = torch.tensor([[0.0] * 4, [1.0] * 4, [-2.0, 0.0, 1.0, 3.0]], dtype=torch.float64)
    together, apart = start_search(starts, 0.7), [start_search(begin, 0.7) for begin in starts]
    for _ in range(4):
        candidates = search_candidates(together, noise)
        together = updated_search(together, candidates, valley(candidates))
        for index in range(3):
            own = search_candidates(apart[index], noise[index])
            apart[index] = updated_search(apart[index], own, valley(own))
    for index, state in enumerate(apart):
        for name, leaf in state._asdict().items():
            of_batch = together._asdict()[name]
            torch.testing.assert_close(of_batch if name == "generation" else of_batch[index], leaf, msg=name)


def test_candidates_have_the_mean_and_the_covariance_of_the_state():
    state = start_search(torch.tensor([1.0, -2.0], dtype=torch.float64), 3.0)
    covariance = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
    variances, axes = torch.linalg.eigh(covariance)
    state = state._replace(covariance=covariance, axes=axes, scales=variances.sqrt())
    drawn = search_candidates(state, torch.randn(100_000, 2, generator=torch.Generator().manual_seed(0)).double())
    torch.testing.assert_close(drawn.mean(0), state.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), 9.0 * covariance, atol=0.0, rtol=0.03)


def test_equal_costs_keep_the_order_and_the_state_stays_finite():
    state = start_search(torch.zeros(2, dtype=torch.float64), 1.0)
    for _ in range(200):
        state = updated_search(state, search_candidates(state, fixed_steps(0, 2, 2)), torch.zeros(2))
    assert all(bool(leaf.isfinite().all()) for leaf in state)
