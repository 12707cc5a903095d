import math

import pytest
import torch
from torch import nn

from rl_lab.components.cnn import CNN
from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.mlp import MLP
from rl_lab.core import ConfigError


def test_mlp_layers_and_initialisation():
    mlp = MLP(3, [8, 5], activation="elu", layer_norm=True)
    kinds = [nn.Linear, nn.LayerNorm, nn.ELU]
    assert [type(layer) for layer in mlp] == kinds * 2
    assert mlp.output_dim == 5
    assert mlp(torch.zeros(4, 2, 3)).shape == (4, 2, 5)
    weight = mlp[3].weight  # [5, 8]: orthogonal rows of length sqrt(2)
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(5), atol=1e-5, rtol=0)
    assert mlp[0].bias.abs().sum() == 0


def test_mlp_computes_what_it_says():
    torch.manual_seed(0)
    mlp, x = MLP(3, [4], "tanh"), torch.randn(2, 3)
    weights = mlp[0].weight.tolist()
    expected = [[math.tanh(sum(w * v for w, v in zip(row, xs, strict=True))) for row in weights] for xs in x.tolist()]
    torch.testing.assert_close(mlp(x), torch.tensor(expected))


def test_empty_mlp_passes_through():
    mlp = MLP(3, [])
    assert mlp.output_dim == 3
    x = torch.ones(2, 3)
    assert torch.equal(mlp(x), x)


def test_unknown_activation_lists_the_choices():
    with pytest.raises(ConfigError, match=r"unknown activation 'tahn'; did you mean 'tanh'\? \(choices: elu, gelu"):
        MLP(3, [4], "tahn")


def test_cnn_reads_uint8_images_with_any_leading_dimensions():
    torch.manual_seed(0)
    cnn, images = CNN([4, 84, 84]), torch.randint(256, (2, 3, 4, 84, 84), dtype=torch.uint8)
    features = cnn(images)
    assert features.shape == (2, 3, 512)
    torch.testing.assert_close(features[1, 2], cnn(images[1, 2].float().unsqueeze(0) / 255.0)[0], rtol=1e-4, atol=1e-5)
    assert cnn.head[0].in_features == 64 * 7 * 7  # Mnih et al., 2015


def test_cnn_that_does_not_fit_says_so():
    with pytest.raises(ConfigError, match=r"do not fit an image of \[3, 6, 6\]"):
        CNN([3, 6, 6])
    with pytest.raises(ConfigError, match="same length"):
        CNN([3, 64, 64], channels=[8])


def test_dict_encoder_concatenates_and_skips_the_mask():
    torch.manual_seed(0)
    encoder = DictEncoder({"a": MLP(2, [4]), "b": MLP(3, [5])})
    obs = {"b": torch.randn(6, 3), "a": torch.randn(6, 2), "action_mask": torch.ones(6, 2, dtype=torch.bool)}
    assert encoder.output_dim == 9
    expected = torch.cat([encoder.encoders["a"](obs["a"]), encoder.encoders["b"](obs["b"])], -1)
    assert torch.equal(encoder(obs), expected)
    with pytest.raises(ConfigError, match=r"no key 'b' in the observation \(choices: a\)"):
        encoder({"a": obs["a"]})
    with pytest.raises(ConfigError, match="action_mask"):
        DictEncoder({"action_mask": MLP(2, [2])})
