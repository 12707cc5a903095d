"""Initial weights and normalisations of world models."""

import math

import numpy as np
import pytest
import torch

from rl_lab.components.layers import BlockLinear, LayerStyle, RMSNorm, Stack, dense, norm_layer
from rl_lab.core import ConfigError


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ("fan_in", 1.0 / math.sqrt(400)),
        ("fan_avg", 1.0 / math.sqrt(350)),
        ("glorot", math.sqrt(2.0 / 700)),
    ],
)
def test_dense_weights_have_the_published_spread_and_no_bias(init, std):
    torch.manual_seed(0)
    layer = dense(400, 300, init)
    assert layer.weight.std().item() == pytest.approx(std, rel=0.01)
    assert layer.weight.mean().item() == pytest.approx(0.0, abs=5e-4)
    assert not layer.bias.any()
    if init != "glorot":  # cut at two standard deviations of the normal that was cut
        assert layer.weight.abs().max().item() <= 2.0 * 1.1368 * std * 1.0001
    assert not dense(4, 3, init, scale=0.0).weight.any()


def test_weights_of_tdmpc_are_orthogonal_or_small_normals():
    torch.manual_seed(0)
    weight = dense(40, 30, "orthogonal", scale=0.5).weight.detach()
    torch.testing.assert_close(weight @ weight.T, 0.25 * torch.eye(30), atol=1e-5, rtol=0)
    weight = dense(400, 300, "normal_0.02").weight.detach()
    assert float(weight.std()) == pytest.approx(0.02, rel=0.01)
    assert float(weight.abs().max()) > 0.08  # four standard deviations: nothing is cut
    assert not dense(4, 3, "normal_0.02", scale=0.0).weight.any()


def test_a_block_linear_is_a_block_diagonal_matrix_with_the_fan_of_the_whole_input():
    torch.manual_seed(0)
    layer = BlockLinear(8 * 32, 8 * 64, 8, "fan_in")
    assert layer.weight.std().item() == pytest.approx(1.0 / math.sqrt(8 * 32), rel=0.02)
    layer.bias.data.normal_()
    x = torch.randn(5, 8 * 32)
    whole = torch.block_diag(*layer.weight)  # [in, out]
    expected = x @ whole + layer.bias.flatten()
    found = layer(x.unflatten(-1, (8, -1)).transpose(0, 1)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ConfigError, match="num_blocks: 8 blocks do not divide 100 inputs"):
        BlockLinear(100, 64, 8, "fan_in")


def test_norms():
    x = np.random.default_rng(0).normal(size=(3, 8)) * 5.0 + 1.0
    rms = RMSNorm(8)
    rms.weight.data = torch.arange(1.0, 9.0)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * np.arange(1, 9)
    np.testing.assert_allclose(rms(torch.tensor(x).float()).detach(), expected, rtol=1e-5)
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(norm_layer("layer", 8)(torch.tensor(x).float()).detach(), expected, rtol=1e-4)
    small = 0.01 * centred  # here the epsilon decides
    expected = small / np.sqrt(small.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm_layer("layer_1e-5", 8)(torch.tensor(small).float()).detach(), expected, rtol=1e-3)


def test_a_stack_has_layers_of_its_style():
    stack = Stack(5, 7, 2, LayerStyle("elu", "none", "glorot"))
    assert [type(module).__name__ for module in stack] == ["Linear", "Identity", "ELU"] * 2
    assert (stack.output_dim, Stack(5, 7, 0, LayerStyle()).output_dim) == (7, 5)
