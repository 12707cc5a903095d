"""Noisy linear layers: their statistics, and when there is no noise."""

import math

import pytest
import torch
from torch import nn

from rl_lab.components.mlp import MLP
from rl_lab.components.noisy import NoisyLinear, factor_noise, with_noise

torch.set_num_threads(1)


def test_initial_parameters_are_those_of_the_paper():
    torch.manual_seed(0)
    layer = NoisyLinear(100, 64)
    for mean in (layer.weight, layer.bias):
        assert float(mean.detach().abs().max()) <= 0.1  # 1 / sqrt(100)
    assert float(layer.weight.detach().std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.05)
    assert torch.all(layer.weight_noise == 0.5 / 10)
    assert torch.all(layer.bias_noise == 0.5 / 8)


def test_the_noise_of_a_factor():
    torch.manual_seed(0)
    drawn = factor_noise(torch.empty(200_000))
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(drawn.square().mean()) == pytest.approx(math.sqrt(2 / math.pi), rel=0.01)  # E|e|


def test_outputs_have_the_mean_and_the_spread_of_factorised_noise():
    torch.manual_seed(0)
    layer = NoisyLinear(3, 2)
    layer.weight_noise.data = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.0, 0.2]])
    layer.bias_noise.data = torch.tensor([0.5, 0.1])
    x = torch.tensor([1.0, -2.0, 0.5])
    outputs = layer(x.expand(400_000, 3)).detach()
    torch.testing.assert_close(outputs.mean(0), layer.weight @ x + layer.bias, atol=0.01, rtol=0.0)
    unit = math.sqrt(2 / math.pi)  # variance of each factor
    for row, (weights, bias) in enumerate(zip(layer.weight_noise.tolist(), layer.bias_noise.tolist(), strict=True)):
        within = sum((w * float(v)) ** 2 for w, v in zip(weights, x, strict=True)) * unit
        expected = (within + bias**2) * unit
        assert float(outputs[:, row].var()) == pytest.approx(expected, rel=0.02)


def test_every_row_has_noise_of_its_own_and_eval_has_none():
    torch.manual_seed(0)
    layer, x = NoisyLinear(4, 3), torch.randn(1, 4).expand(5, 4)
    noisy = layer(x)
    assert len({tuple(row) for row in noisy.tolist()}) == 5
    assert not torch.equal(noisy, layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
    state = torch.get_rng_state()
    layer(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_reach_means_and_noise():
    layer = NoisyLinear(4, 3)
    layer(torch.randn(8, 4)).square().sum().backward()
    assert all(float(p.grad.abs().min()) > 0 for p in layer.parameters())


def test_linear_layers_of_a_network_become_noisy_at_any_depth():
    network = with_noise(nn.Sequential(MLP(4, (8, 6), "relu"), nn.Linear(6, 2)))
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(NoisyLinear) == 3
    assert nn.Linear not in kinds
    assert network(torch.randn(5, 4)).shape == (5, 2)
