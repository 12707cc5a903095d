"""Squashing and two-hot regression against NumPy in float64."""

import numpy as np
import torch

from rl_lab.ops.symlog import expectation, symexp, symlog, two_hot_loss

BINS = np.linspace(-3.0, 3.0, 7)


def naive_two_hot(target, bins):
    """Return the weights of a target on all bins."""
    weights = np.zeros(len(bins))
    target = min(max(target, bins[0]), bins[-1])
    above = int(np.searchsorted(bins, target))
    if above < len(bins) and bins[above] == target:
        weights[above] = 1.0
        return weights
    share = (target - bins[above - 1]) / (bins[above] - bins[above - 1])
    weights[above - 1], weights[above] = 1.0 - share, share
    return weights


def test_symlog_and_back():
    x = np.array([-1e6, -2.5, -1e-3, 0.0, 0.7, 40.0, 1e6])
    expected = np.sign(x) * np.log(1.0 + np.abs(x))
    np.testing.assert_allclose(symlog(torch.tensor(x)), expected, rtol=1e-12)
    np.testing.assert_allclose(symexp(torch.tensor(expected)), x, rtol=1e-9)


def test_two_hot_loss_equals_the_cross_entropy_of_whole_vectors():
    targets = np.array([-5.0, -3.0, -2.9, -0.5, 0.0, 0.25, 2.0, 2.999, 3.0, 9.0])
    logits = np.random.default_rng(0).normal(size=(len(targets), 7))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [-(naive_two_hot(t, BINS) * row).sum() for t, row in zip(targets, log_probs, strict=True)]
    found = two_hot_loss(torch.tensor(logits), torch.tensor(targets), torch.tensor(BINS))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_expectation_is_exactly_zero_for_equal_logits_and_right_for_others():
    bins = symexp(torch.linspace(-20.0, 20.0, 255))
    bins = torch.cat([bins[:127], torch.zeros(1), -bins[:127].flip(0)])
    assert expectation(torch.full((4, 255), 0.3), bins).tolist() == [0.0] * 4
    logits = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probs = logits.exp().numpy() / logits.exp().sum(-1, keepdim=True).numpy()
    np.testing.assert_allclose(expectation(logits, torch.tensor(BINS)), (probs * BINS).sum(-1), rtol=1e-12)
