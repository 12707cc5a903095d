"""Return computers against the definitions, step by step in float64, and that they agree where they must."""

import numpy as np
import pytest
import torch

from rl_lab.components.returns import LambdaReturn, MonteCarloReturn, NStepReturn, return_computer
from rl_lab.core import ConfigError

STEPS, LANES = 7, 3


def numbers(seed=0):
    rng = np.random.default_rng(seed)
    continues = 0.9 * rng.uniform(0.5, 1.0, (STEPS, LANES))
    continues[3, 1] = 0.0  # an end
    return rng.normal(size=(STEPS, LANES)), rng.normal(size=(STEPS, LANES)), continues


def naive_n_step(rewards, values, continues, t, n):
    """Return the sum of n rewards and the value behind them, or of as many as there are."""
    total, weight = 0.0, 1.0
    for step in range(t, min(t + n, STEPS)):
        total = total + weight * rewards[step]
        weight = weight * continues[step]
    return total + weight * values[min(t + n, STEPS) - 1]


def naive_lambda(rewards, values, continues, t, lam):
    """Return the mean of the n-step returns, the longest with all the weight that is left."""
    left = STEPS - t
    weights = [(1.0 - lam) * lam ** (n - 1) for n in range(1, left)] + [lam ** (left - 1)]
    return sum(w * naive_n_step(rewards, values, continues, t, n) for n, w in enumerate(weights, 1))


def found(computer, arrays):
    return computer(*(torch.from_numpy(array) for array in arrays)).numpy()


@pytest.mark.parametrize("n", [1, 2, 5, 7, 50])
def test_n_steps(n):
    expected = np.stack([naive_n_step(*numbers(), t, n) for t in range(STEPS)])
    np.testing.assert_allclose(found(NStepReturn(n), numbers()), expected, rtol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.6, 0.95, 1.0])
def test_lambda(lam):
    expected = np.stack([naive_lambda(*numbers(), t, lam) for t in range(STEPS)])
    np.testing.assert_allclose(found(LambdaReturn(lam), numbers()), expected, rtol=1e-12)


def test_monte_carlo_sums_all_rewards():
    expected = np.stack([naive_n_step(*numbers(), t, STEPS) for t in range(STEPS)])
    np.testing.assert_allclose(found(MonteCarloReturn(), numbers()), expected, rtol=1e-12)
    rewards, values, continues = numbers()
    continues[-1] = 0.0  # the episode is over: values do not matter
    assert np.array_equal(
        found(MonteCarloReturn(), (rewards, values, continues)),
        found(MonteCarloReturn(), (rewards, 0 * values, continues)),
    )


def test_they_are_found_by_name():
    kinds = {"lambda": LambdaReturn(0.8), "n_step": NStepReturn(3), "monte_carlo": MonteCarloReturn()}
    for name, computer in kinds.items():
        named = return_computer(name, lam=0.8, n=3)
        assert type(named) is type(computer)
        assert np.array_equal(found(named, numbers()), found(computer, numbers()))
    with pytest.raises(ConfigError, match="unknown returns 'mc'"):
        return_computer("mc", lam=0.8, n=3)
