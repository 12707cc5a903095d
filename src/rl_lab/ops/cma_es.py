"""CMA-ES (Hansen, 2016, https://arxiv.org/abs/1604.00772): minimisation by a normal that learns its own shape.

The state is arrays and every function is pure, so that it lives on any device and in any checkpoint. All functions take
leading dimensions [...]: several searches of the same size are one batch. Weights may be negative (active CMA).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_VARIANCE = 1e-20  # of an axis; rounding may leave a negative one


class SearchState(NamedTuple):
    """The distribution of candidates in D dimensions, and the paths that it learns from."""

    mean: Tensor  # [..., D]
    sigma: Tensor  # [...] step size
    covariance: Tensor  # [..., D, D]
    axes: Tensor  # [..., D, D] eigenvectors of the covariance, in columns
    scales: Tensor  # [..., D] roots of its eigenvalues
    mean_path: Tensor  # [..., D] of the covariance: how the mean has moved, in units of sigma
    sigma_path: Tensor  # [..., D] the same on unit axes
    generation: Tensor  # [] updates so far


class Rates(NamedTuple):
    """The constants of the search, by dimension and population (table 1 of the tutorial)."""

    weights: tuple[float, ...]  # of the candidates, best first; the positive ones sum to 1
    num_parents: int  # candidates with a positive weight
    mass: float  # variance-effective number of these, mu_eff
    sigma_path: float  # c_sigma
    sigma: float  # c_sigma / d_sigma
    mean_path: float  # c_c
    rank_one: float  # c_1
    rank_mu: float  # c_mu
    length: float  # expected length of a standard normal vector


@lru_cache
def search_rates(dim: int, population: int) -> Rates:
    """Return the constants for `dim` dimensions and a population of 2 or more."""
    raw = [math.log((population + 1) / 2) - math.log(rank) for rank in range(1, population + 1)]
    above, below = [w for w in raw if w > 0.0], [w for w in raw if w <= 0.0]
    mass = sum(above) ** 2 / sum(w * w for w in above)
    mass_below = sum(below) ** 2 / sum(w * w for w in below)
    rank_one = min(1.0, population / 6) * 2.0 / ((dim + 1.3) ** 2 + mass)  # small ones as in the package `cma`
    rank_mu = min(1.0 - rank_one, 2.0 * (0.25 + mass + 1.0 / mass - 2.0) / ((dim + 2) ** 2 + mass))
    limits = (
        1.0 + rank_one / rank_mu,
        1.0 + 2.0 * mass_below / (mass + 2.0),
        (1.0 - rank_one - rank_mu) / (dim * rank_mu),  # the covariance stays positive
    )
    weights = [w / sum(above) for w in above] + [min(limits) * w / -sum(below) for w in below]
    sigma_path = (mass + 2.0) / (dim + mass + 5.0)
    damping = 1.0 + 2.0 * max(0.0, math.sqrt((mass - 1.0) / (dim + 1)) - 1.0) + sigma_path
    return Rates(
        weights=tuple(weights),
        num_parents=len(above),
        mass=mass,
        sigma_path=sigma_path,
        sigma=sigma_path / damping,
        mean_path=(4.0 + mass / dim) / (dim + 4.0 + 2.0 * mass / dim),
        rank_one=rank_one,
        rank_mu=rank_mu,
        length=math.sqrt(2.0) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2)),
    )


def start_search(mean: Tensor, sigma: float) -> SearchState:
    """Return a search that begins round at `mean` [..., D]."""
    identity = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device).expand(*mean.shape, -1)
    return SearchState(
        mean=mean.clone(),
        sigma=torch.full(mean.shape[:-1], sigma, dtype=mean.dtype, device=mean.device),
        covariance=identity.clone(),
        axes=identity.clone(),
        scales=torch.ones_like(mean),
        mean_path=torch.zeros_like(mean),
        sigma_path=torch.zeros_like(mean),
        generation=torch.zeros((), dtype=mean.dtype, device=mean.device),
    )


def search_candidates(state: SearchState, noise: Tensor) -> Tensor:
    """Return candidates [..., P, D] for standard normal `noise` of that shape."""
    steps = (noise * state.scales.unsqueeze(-2)) @ state.axes.mT
    return state.mean.unsqueeze(-2) + _column(state.sigma, 2) * steps


def updated_search(state: SearchState, candidates: Tensor, costs: Tensor) -> SearchState:
    """Return the search after candidates [..., P, D] have turned out to cost [..., P]; they may come from anywhere."""
    rates = search_rates(candidates.shape[-1], candidates.shape[-2])
    weights = torch.tensor(rates.weights, dtype=state.mean.dtype, device=state.mean.device)
    order = costs.argsort(dim=-1, stable=True).unsqueeze(-1).expand_as(candidates)
    ranked = candidates.to(state.mean.dtype).gather(-2, order)
    steps = (ranked - state.mean.unsqueeze(-2)) / _column(state.sigma, 2)  # [..., P, D]
    moved = (weights[: rates.num_parents, None] * steps[..., : rates.num_parents, :]).sum(-2)
    sigma_path, is_steady = _sigma_path(state, moved, rates)
    drawn = is_steady.unsqueeze(-1) * math.sqrt(rates.mean_path * (2.0 - rates.mean_path) * rates.mass)
    mean_path = (1.0 - rates.mean_path) * state.mean_path + drawn * moved
    covariance = _covariance(state, steps, weights, mean_path, is_steady, rates)
    variances, axes = torch.linalg.eigh(covariance)
    lengths = torch.linalg.vector_norm(sigma_path, dim=-1)
    return SearchState(
        mean=state.mean + _column(state.sigma, 1) * moved,
        sigma=state.sigma * (rates.sigma * (lengths / rates.length - 1.0)).clamp(max=1.0).exp(),
        covariance=covariance,
        axes=axes,
        scales=variances.clamp(min=SMALLEST_VARIANCE).sqrt(),
        mean_path=mean_path,
        sigma_path=sigma_path,
        generation=state.generation + 1.0,
    )


def _sigma_path(state: SearchState, moved: Tensor, rates: Rates) -> tuple[Tensor, Tensor]:
    """Return the path of the step size, and where it is not so long that the covariance should wait for it."""
    step = math.sqrt(rates.sigma_path * (2.0 - rates.sigma_path) * rates.mass)
    path = (1.0 - rates.sigma_path) * state.sigma_path + step * _on_unit_axes(state, moved.unsqueeze(-2)).squeeze(-2)
    begun = 1.0 - (1.0 - rates.sigma_path) ** (2.0 * (state.generation + 1.0))
    dim = moved.shape[-1]
    return path, (path.square().mean(-1) < (2.0 + 4.0 / (dim + 1)) * begun).to(path.dtype)


def _on_unit_axes(state: SearchState, steps: Tensor) -> Tensor:
    """Return steps [..., K, D] times the inverse root of the covariance."""
    return (steps @ state.axes / state.scales.unsqueeze(-2)) @ state.axes.mT


def _covariance(
    state: SearchState, steps: Tensor, weights: Tensor, mean_path: Tensor, is_steady: Tensor, rates: Rates
) -> Tensor:
    """Return the covariance with the path (rank one) and the ranked steps (rank mu) in it."""
    lengths = _on_unit_axes(state, steps).square().sum(-1)  # [..., P]
    scaled = torch.where(weights < 0.0, weights * steps.shape[-1] / (lengths + 1e-20), weights)
    waiting = (1.0 - is_steady) * rates.mean_path * (2.0 - rates.mean_path)  # the variance that the path did not get
    kept = 1.0 + rates.rank_one * waiting - rates.rank_one - rates.rank_mu * sum(rates.weights)
    covariance = (
        _column(kept, 2) * state.covariance
        + rates.rank_one * mean_path.unsqueeze(-1) * mean_path.unsqueeze(-2)
        + rates.rank_mu * (scaled.unsqueeze(-1) * steps).mT @ steps
    )
    return 0.5 * (covariance + covariance.mT)


def _column(values: Tensor, dims: int) -> Tensor:
    """Return values [...] with so many dimensions after their own."""
    return values.view(*values.shape, *[1] * dims)
