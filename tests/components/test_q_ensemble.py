"""Critics as one network: against one critic after the other in float64, subsets of them, and the spread of values."""

import copy

import numpy as np
import pytest
import torch

from rl_lab.components.layers import LayerStyle
from rl_lab.components.q_ensemble import QEnsemble, ValueScale
from rl_lab.core import ConfigError

torch.set_num_threads(1)
ELU = LayerStyle("elu", "none", "orthogonal")


def bound(dim=5, **options):
    torch.manual_seed(0)
    critic = QEnsemble(**{"units": 6, "num_members": 4, "num_bins": 11, "limit": 3.0, "scale": 1.0, **options})
    critic.bind(dim)
    for parameter in critic.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) * 0.5)
    return critic


def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


def elu(x):
    return np.where(x > 0, x, np.expm1(x))


def naive(critic, x, member):
    """Return the outputs [B, k] of one critic."""
    weights = {name: value.detach().double().numpy() for name, value in critic.named_parameters()}
    for index in range(critic.num_layers):
        layer = f"layers.{index}."
        x = x @ weights[layer + "linear.weight"][member] + weights[layer + "linear.bias"][member]
        if layer + "norm.weight" in weights:
            x = x - x.mean(-1, keepdims=True)
            x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
            x = x * weights[layer + "norm.weight"][member] + weights[layer + "norm.bias"][member]
        is_squashed = critic.tanh_first and index == 0
        x = np.tanh(x) if is_squashed else (elu(x) if critic.style is ELU else mish(x))
    return x @ weights["last.weight"][member] + weights["last.bias"][member]


@pytest.mark.parametrize("options", [{}, {"style": ELU, "tanh_first": True, "kind": "gaussian"}])
def test_every_member_is_a_critic_of_its_own(options):
    critic = bound(**options)
    assert [layer.norm is None for layer in critic.layers] == [False, bool(options)]
    features = torch.randn(2, 3, 5)
    members = torch.tensor([3, 1])
    everyone, some = critic(features), critic(features, members)
    assert everyone.shape == (4, 2, 3, 1 if options else 11)
    for member in range(4):
        expected = naive(critic, features.reshape(6, 5).double().numpy(), member).reshape(2, 3, -1)
        np.testing.assert_allclose(everyone[member].detach(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some, everyone[members])


def test_values_are_of_random_pairs_without_replacement():
    critic, features = bound(), torch.randn(90, 5)
    values = critic.mean(critic(features)).detach()  # [4, 90]
    pairs = {(a, b): values[[a, b]] for a in range(4) for b in range(a)}
    seen = []
    for _ in range(200):
        found = critic.value(features, "mean").detach()
        seen += [pair for pair, both in pairs.items() if torch.allclose(found, both.mean(0), atol=1e-5)]
        least = critic.value(features, "min").detach()
        assert any(torch.allclose(least, both.amin(0), atol=1e-5) for both in pairs.values())
    assert len(seen) == 200
    assert set(seen) == set(pairs)
    assert max(seen.count(pair) for pair in pairs) < 65  # of 33 on average
    everyone = bound(subset_size=None)
    torch.testing.assert_close(everyone.value(features, "min"), everyone.mean(everyone(features)).amin(0))


def test_gradients_of_frozen_critics_reach_the_features_only():
    critic, features = bound(subset_size=None), torch.randn(7, 5, requires_grad=True)
    critic.value(features, "mean", is_frozen=True).sum().backward()
    frozen = features.grad.clone()
    assert all(parameter.grad is None for parameter in critic.parameters())
    features.grad = None
    critic.value(features, "mean").sum().backward()
    torch.testing.assert_close(features.grad, frozen)
    assert all(parameter.grad is not None for parameter in critic.parameters())


def test_something_is_dropped_only_in_the_first_layer_and_only_where_it_learns():
    critic, features = bound(dropout=0.5, subset_size=None), torch.randn(400, 5)
    assert torch.equal(critic(features), critic(features))
    assert not torch.equal(critic(features, None, True), critic(features, None, True))
    seen = []
    for layer in critic.layers:
        layer.activation.register_forward_pre_hook(lambda module, x: seen.append(x[0]))
    critic.layers[0].norm = None
    critic(features, None, True)
    assert float((seen[0] == 0.0).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert not bool((seen[1] == 0.0).any())


def test_the_first_values_are_exactly_zero():
    critic = QEnsemble(6, num_members=3)
    critic.bind(5)
    assert torch.equal(critic.value(1e3 * torch.randn(9, 5), "mean"), torch.zeros(9))


def test_the_spread_of_values_is_followed():
    scale, generator, expected = ValueScale(0.1), np.random.default_rng(0), 1.0
    for spread in (0.1, 30.0, 30.0, 2.0):
        values = generator.normal(size=200) * spread
        low, high = np.percentile(values, [5, 95])
        expected += 0.1 * (max(1.0, high - low) - expected)
        assert float(scale(torch.tensor(values))) == pytest.approx(expected, rel=1e-5)
    assert float(copy.deepcopy(scale).value) == pytest.approx(expected, rel=1e-5)
    assert "value" in scale.state_dict()  # a resumed run goes on with it


def test_more_critics_than_there_are_cannot_be_asked():
    with pytest.raises(ConfigError, match=r"components\.critic\.subset_size: 3 of 2 critics \(num_members\)"):
        QEnsemble(8, num_members=2, subset_size=3)
