"""Returns of dreams and of replayed steps against naive loops, and the scale of returns against NumPy."""

import numpy as np
import torch

from rl_lab.components.imagination import Replayed, replay_returns
from rl_lab.components.return_scale import ReturnScale
from rl_lab.ops.returns import lambda_returns


def test_lambda_returns_with_a_discount_per_step():
    rng = np.random.default_rng(0)
    rewards, values, discounts = rng.normal(size=(6, 3)), rng.normal(size=(6, 3)), rng.uniform(size=(6, 3))
    expected, following = np.zeros((6, 3)), values[-1]
    for t in reversed(range(6)):
        following = rewards[t] + discounts[t] * (0.05 * values[t] + 0.95 * following)
        expected[t] = following
    found = lambda_returns(torch.tensor(rewards), torch.tensor(values), torch.tensor(discounts), lam=0.95)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_replayed_returns_stop_at_the_ends_of_episodes():
    rng = np.random.default_rng(1)
    rewards, imagined = rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    is_last = np.array([[0, 0], [0, 1], [0, 0], [1, 0], [0, 0]], dtype=bool)
    is_terminal = np.array([[0, 0], [0, 1], [0, 0], [0, 0], [0, 0]], dtype=bool)
    gamma, lam = 0.9, 0.8
    expected, following = np.zeros((4, 2)), imagined[-1]
    for t in reversed(range(4)):
        live, cont = gamma * ~is_terminal[t + 1], lam * ~is_last[t + 1]
        following = rewards[t + 1] + live * ((1.0 - cont) * imagined[t + 1] + cont * following)
        expected[t] = following
    replayed = Replayed(*(torch.tensor(rows).T for rows in (rewards, is_last, is_terminal)))
    returns, weights = replay_returns(replayed, torch.tensor(imagined), gamma=gamma, lam=lam)
    np.testing.assert_allclose(returns, expected, rtol=1e-9)
    assert weights.tolist() == (~is_last[:-1]).astype(float).tolist()
    assert returns[0, 1].item() == rewards[1, 1]  # a terminal step: the reward and nothing after it


def test_the_scale_follows_the_range_between_percentiles():
    scale, low, high = ReturnScale(rate=0.1), 0.0, 0.0
    rng = np.random.default_rng(2)
    for _ in range(5):
        returns = rng.normal(size=(7, 13)) * 30.0
        low += 0.1 * (np.percentile(returns, 5) - low)
        high += 0.1 * (np.percentile(returns, 95) - high)
        offset, spread = scale(torch.tensor(returns))
        np.testing.assert_allclose([offset, spread], [low, max(1.0, high - low)], rtol=1e-5)
    assert ReturnScale()(torch.zeros(10))[1] == 1.0  # small returns are not blown up
