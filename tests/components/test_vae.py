"""The VAE: its loss against one written out, the floor under the KL, and the published network."""

import copy
import math

import pytest
import torch

from rl_lab.components.layers import LayerStyle
from rl_lab.components.vae import VAE, Belief
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.core import Box, ConfigError, Discrete, tree_map

STYLE = LayerStyle(activation="relu", norm="none", init="glorot")


def make_vae(space, latent_dim=2, *, units=4, depth=4, **options):
    vision = {"units": units, "num_layers": 1, "style": STYLE, "symlog": False, "images": "strided", "depth": depth}
    vae = VAE(WorldEncoder(**vision), WorldDecoder(**vision), latent_dim, **options)
    vae.bind(space)
    return vae


def affine(layer, x):
    return x @ layer.weight.T + layer.bias


@pytest.mark.parametrize("kl_floor", [0.0, 0.5, 3.0])
def test_the_loss_is_the_one_written_out(kl_floor, monkeypatch):
    torch.manual_seed(0)
    vae = make_vae(Box((3,)), kl_floor=kl_floor, decoder_scale=10.0)
    obs = torch.randn(5, 3)
    noise = torch.randn(5, 2)
    monkeypatch.setattr("torch.randn_like", lambda x: noise.to(x))
    loss, terms = (tree_map(torch.detach, part) for part in vae.losses(obs))
    plain, total, kls = copy.deepcopy(vae).double().requires_grad_(False), 0.0, []
    for row, draw in zip(obs.double(), noise.double(), strict=True):
        mean, log_var = affine(plain.head, affine(plain.encoder.vectors[0], row).clamp(min=0.0)).chunk(2)
        z = mean + (0.5 * log_var).exp() * draw
        expected = affine(plain.decoder.vectors[1], affine(plain.decoder.vectors[0][0], z).clamp(min=0.0))
        kl = sum(
            0.5 * (float(m) ** 2 + math.exp(float(v)) - 1.0 - float(v)) for m, v in zip(mean, log_var, strict=True)
        )
        kls.append(kl)
        total += 10.0 * 0.5 * float((expected - row).square().sum()) + max(kl, 2 * kl_floor)
    assert float(loss) == pytest.approx(total / 5, rel=1e-5)
    assert float(terms["kl"]) == pytest.approx(sum(kls) / 5, rel=1e-5)
    assert float(terms["kl_loss"]) == pytest.approx(sum(max(kl, 2 * kl_floor) for kl in kls) / 5, rel=1e-5)
    assert max(kls) < 6.0 or kl_floor < 3.0


def test_below_the_floor_nothing_is_learned_from_the_kl():
    belief = Belief(torch.full((1, 4), 0.1, requires_grad=True), torch.zeros(1, 4))
    (gradient,) = torch.autograd.grad(belief.kl().clamp(min=2.0).mean(), belief.mean)
    assert not gradient.any()


def test_it_has_as_many_parameters_as_published():
    vae = make_vae(Box((3, 64, 64), dtype=torch.uint8), 32, depth=32)
    assert sum(parameter.numel() for parameter in vae.parameters()) == 4_348_547  # Ha and Schmidhuber, 2018, appendix


def test_pictures_vectors_and_choices_are_learned_side_by_side():
    torch.manual_seed(0)
    space = {"camera": Box((1, 64, 64), dtype=torch.uint8), "speed": Box((2,)), "gear": Discrete(3)}
    vae = make_vae(space, 4, kl_floor=0.0, units=16, depth=1)
    optimizer = torch.optim.Adam(vae.parameters(), 1e-2)
    gear = torch.tensor([0, 1, 2, 1])
    camera = (gear * 60 + 40).view(4, 1, 1, 1).expand(4, 1, 64, 64).to(torch.uint8)
    obs = {"camera": camera, "speed": torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 1.0], [1.0, 0.0]]), "gear": gear}
    before = None
    for _ in range(5):
        loss, terms = vae.losses(obs)
        before = before or float(loss.detach())
        assert float(loss.detach()) == pytest.approx(sum(float(term) for key, term in terms.items() if key != "kl"))
        assert set(terms) == {"kl", "kl_loss", *(f"decoder_{key}_loss" for key in space)}
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in vae.parameters())
        optimizer.step()
    assert float(vae.losses(obs)[0].detach()) < before


def test_pictures_that_do_not_fit_name_the_vae():
    with pytest.raises(ConfigError, match=r"images of 10x12 cannot be halved 4 times by components\.vae\.encoder"):
        make_vae(Box((3, 10, 12), torch.uint8))


def test_any_leading_dimensions():
    vae = make_vae(Box((3,)))
    obs = torch.randn(2, 5, 3)
    torch.testing.assert_close(vae(obs).mean, vae(obs.flatten(0, 1)).mean.view(2, 5, 2))
