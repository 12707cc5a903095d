"""Scalar heads against float64 NumPy: bins, two-hot losses both ways, means that are exactly 0 at first."""

import numpy as np
import pytest
import torch

from rl_lab.components.layers import LayerStyle
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.core import ConfigError

torch.set_num_threads(1)
TARGETS = [-3e9, -512.3, -1.0, -1e-3, 0.0, 0.4, 1.0, 77.0, 6e8]


def symlog(x):
    return np.sign(x) * np.log1p(np.abs(x))


def symexp(x):
    return np.sign(x) * np.expm1(np.abs(x))


def bins_of(kind, count=255, limit=20.0):
    even = np.linspace(-limit, limit, count)
    return symexp(even) if kind == "symexp_two_hot" else even


def two_hot(value, bins):
    """Return the weights of all bins, by a walk over them."""
    weights, value = np.zeros(len(bins)), min(max(value, bins[0]), bins[-1])
    for index in range(len(bins) - 1):
        if bins[index] <= value <= bins[index + 1]:
            share = (value - bins[index]) / (bins[index + 1] - bins[index])
            weights[index], weights[index + 1] = 1.0 - share, share
            return weights
    raise AssertionError(value)


def bound(head, dim=6):
    torch.manual_seed(0)
    head.bind(dim)
    return head


@pytest.mark.parametrize("kind", ["symlog_two_hot", "symexp_two_hot"])
def test_bins_are_the_published_ones_and_mirror_each_other(kind):
    bins = ScalarHead(8, 1, kind=kind).bins
    np.testing.assert_allclose(bins, bins_of(kind), rtol=1e-6, atol=1e-6)
    assert torch.equal(bins, -bins.flip(0))
    assert bins.dtype == torch.float32


@pytest.mark.parametrize("kind", ["gaussian", "mse", "symlog_two_hot", "symexp_two_hot"])
def test_the_first_prediction_is_exactly_zero(kind):
    head = bound(ScalarHead(16, 2, kind=kind))
    outputs = head(1e3 * torch.randn(4, 3, 6))
    assert outputs.shape == (4, 3, head.output_dim)
    assert torch.equal(head.mean(outputs), torch.zeros(4, 3))


@pytest.mark.parametrize("kind", ["symlog_two_hot", "symexp_two_hot"])
def test_two_hot_losses_and_means(kind):
    head, bins = ScalarHead(8, 1, kind=kind), bins_of(kind)
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(len(TARGETS), 255)).astype(np.float32)
    log_probs = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    squashed = symlog(np.array(TARGETS)) if kind == "symlog_two_hot" else np.array(TARGETS)
    expected = [-(two_hot(value, bins) * row).sum() for value, row in zip(squashed, log_probs, strict=True)]
    found = head.losses(torch.from_numpy(logits), torch.tensor(TARGETS))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    mean = (np.exp(log_probs) * bins).sum(-1)
    mean = symexp(mean) if kind == "symlog_two_hot" else mean
    np.testing.assert_allclose(head.mean(torch.from_numpy(logits)), mean, rtol=2e-4, atol=1e-6 * np.abs(bins).max())


@pytest.mark.parametrize("kind", ["symlog_two_hot", "symexp_two_hot"])
def test_a_head_that_fits_its_target_predicts_it(kind):
    head, bins = ScalarHead(8, 1, kind=kind, num_bins=41, limit=5.0), bins_of(kind, 41, 5.0)
    for target in (-20.0, -0.3, 0.0, 2.5, 100.0):
        weights = two_hot(symlog(target) if kind == "symlog_two_hot" else target, bins)
        logits = torch.from_numpy(np.log(weights + 1e-12)).float()
        assert float(head.mean(logits)) == pytest.approx(target, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("kind", "share"), [("gaussian", 0.5), ("mse", 1.0)])
def test_losses_are_the_squared_error_or_half_of_it(kind, share):
    head = bound(ScalarHead(8, 1, kind=kind, scale=1.0))
    features, targets = torch.randn(5, 6), torch.randn(5)
    outputs = head(features)
    assert outputs.shape == (5, 1)
    found = outputs[:, 0].detach().double().numpy()
    expected = [share * (mean - float(target)) ** 2 for mean, target in zip(found, targets, strict=True)]
    np.testing.assert_allclose(head.losses(outputs, targets).detach(), expected, rtol=1e-5)
    assert torch.equal(head.mean(outputs), outputs[:, 0])


def test_squared_errors_are_descended_to_the_mean_of_targets():
    head, features = bound(ScalarHead(16, 1, kind="mse")), torch.ones(4, 6)
    targets, descent = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(300):
        descent.zero_grad()
        head.losses(head(features), targets).mean().backward()
        descent.step()
    assert head.mean(head(features)).tolist() == pytest.approx([4.0] * 4, abs=0.01)


@pytest.mark.parametrize("kind", ["gaussian", "mse", "symlog_two_hot", "symexp_two_hot"])
def test_no_gradient_flows_into_targets(kind):
    head = bound(ScalarHead(8, 1, kind=kind, scale=1.0))
    targets = torch.randn(5, requires_grad=True)
    head.losses(head(torch.randn(5, 6)), targets).sum().backward()
    assert targets.grad is None
    assert all(parameter.grad is not None for parameter in head.parameters())


def test_bins_are_not_saved():
    assert not any("bins" in name for name in bound(ScalarHead(8, 1)).state_dict())


def test_outputs_are_float32_also_where_layers_compute_in_less():
    heads = [bound(ScalarHead(8, 1)), bound(ContinueHead(8, 1))]
    with torch.autocast("cpu", torch.bfloat16):
        assert [head(torch.randn(2, 6)).dtype for head in heads] == [torch.float32] * 2


def test_continuation():
    head = bound(ContinueHead(8, 2, LayerStyle("elu", "none", "glorot")))
    logits, targets = head(torch.randn(3, 5, 6)), torch.rand(3, 5)
    assert logits.shape == (3, 5)
    probs = 1.0 / (1.0 + np.exp(-logits.detach().double().numpy()))
    np.testing.assert_allclose(head.probability(logits).detach(), probs, rtol=1e-6)
    wanted = targets.double().numpy()
    expected = -(wanted * np.log(probs) + (1.0 - wanted) * np.log(1.0 - probs))
    np.testing.assert_allclose(head.losses(logits, targets).detach(), expected, rtol=1e-5)


@pytest.mark.parametrize("head", [ScalarHead(8, 1), ContinueHead(8, 1)])
def test_heads_are_bound_once(head):
    head.bind(3)
    with pytest.raises(AssertionError, match="once"):
        head.bind(3)


def test_what_cannot_be_built():
    with pytest.raises(ConfigError, match="num_bins: 254"):
        ScalarHead(8, 1, num_bins=254)
    with pytest.raises(ConfigError, match="symexp_two_hot"):
        ScalarHead(8, 1, kind="symexp_twohot")
