"""Squashing and two-hot regression against NumPy in float64."""

from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.ops.symlog import expectation, symexp, symlog, two_hot_loss

BINS = np.linspace(-3.0, 3.0, 7)
COMPILED = partial(torch.compile, backend="aot_eager", fullgraph=True)  # all but the kernels
both_ways = pytest.mark.parametrize("ready", [lambda function: function, COMPILED], ids=["eager", "compiled"])


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


@both_ways
def test_two_hot_loss_equals_the_cross_entropy_of_whole_vectors(ready):
    targets = np.array([-5.0, -3.0, -2.9, -0.5, 0.0, 0.25, 2.0, 2.999, 3.0, 9.0])
    logits = np.random.default_rng(0).normal(size=(len(targets), 7))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = np.stack([naive_two_hot(t, BINS) for t in targets])
    given = torch.tensor(logits, requires_grad=True)
    found = ready(two_hot_loss)(given, torch.tensor(targets), torch.tensor(BINS))
    np.testing.assert_allclose(found.detach(), -(wanted * log_probs).sum(-1), rtol=1e-12)
    found.sum().backward()
    np.testing.assert_allclose(given.grad, np.exp(log_probs) - wanted, rtol=1e-9, atol=1e-12)


@both_ways
def test_the_expectation_is_exactly_zero_for_equal_logits_and_right_for_others(ready):
    bins = symexp(torch.linspace(-20.0, 20.0, 255))
    bins = torch.cat([bins[:127], torch.zeros(1), -bins[:127].flip(0)])
    assert ready(expectation)(torch.full((4, 255), 0.3), bins).tolist() == [0.0] * 4
    logits = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probs = logits.exp().numpy() / logits.exp().sum(-1, keepdim=True).numpy()
    np.testing.assert_allclose(ready(expectation)(logits, torch.tensor(BINS)), (probs * BINS).sum(-1), rtol=1e-12)
