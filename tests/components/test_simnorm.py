"""Simplicial normalisation against float64 NumPy."""

import numpy as np
import pytest
import torch

from rl_lab.components.layers import LayerStyle
from rl_lab.components.simnorm import SimNorm, sim_norm, to_latent
from rl_lab.core import ConfigError


def test_groups_are_softmaxes():
    x = np.random.default_rng(0).normal(size=(3, 5, 12)) * 4.0
    found = SimNorm(4)(torch.tensor(x).float()).double().numpy()
    for index in np.ndindex(3, 5):
        for start in (0, 4, 8):
            exps = np.exp(x[index][start : start + 4])
            np.testing.assert_allclose(found[index][start : start + 4], exps / exps.sum(), rtol=1e-5)
    np.testing.assert_allclose(found.sum(-1), 3.0, rtol=1e-6)


def test_the_layer_before_it_is_normalised_as_its_style_says():
    torch.manual_seed(0)
    layer, x = to_latent(6, 8, LayerStyle("mish", "layer_1e-5", "normal_0.02"), 4), torch.randn(7, 6)
    raw = (x @ layer[0].weight.T).double().detach().numpy()
    centred = raw - raw.mean(-1, keepdims=True)
    normed = np.exp(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(7, 2, 4)
    expected = (normed / normed.sum(-1, keepdims=True)).reshape(7, 8)
    np.testing.assert_allclose(layer(x).detach(), expected, rtol=1e-4)
    plain = to_latent(6, 8, LayerStyle("elu", "none", "orthogonal"), None)
    torch.testing.assert_close(plain(x), x @ plain[0].weight.T)


def test_groups_must_divide_the_state():
    with pytest.raises(ConfigError, match=r"world_model\.group_size: groups of 8 do not divide latent_dim=50"):
        sim_norm(50, 8)
