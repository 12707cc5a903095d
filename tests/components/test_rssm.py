"""The recurrent state-space model: its cores by hand, filtering step by step, forgetting at an episode's start."""

import numpy as np
import pytest
import torch

from rl_lab.components.dynamics import Latent
from rl_lab.components.layers import LayerStyle
from rl_lab.components.rssm import RSSM
from rl_lab.components.rssm_cores import make_core
from rl_lab.core import ConfigError

CPU = torch.device("cpu")
CORES = ("gru", "layer_norm_gru", "block_gru")


def make_rssm(core="block_gru", latent="categorical", **options):
    torch.manual_seed(0)
    rssm = RSSM(16, 8, 4, 3, latent=latent, core=core, num_blocks=4, **options)
    rssm.bind(5, 2)
    return rssm


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu_rms(x, weight):
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * weight
    return y * sigmoid(y)


def arrays(module):
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def test_the_block_gru_by_hand():
    torch.manual_seed(0)
    core = make_core("block_gru", 8, 6, 2, 4, 2, LayerStyle())
    for parameter in core.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    deter, stoch, action = torch.randn(3, 8), torch.randn(3, 6), torch.randn(3, 2)
    p, h = arrays(core), deter.double().numpy()
    parts = [
        silu_rms(
            x.double().numpy() @ p[f"inputs.{name}.0.weight"].T + p[f"inputs.{name}.0.bias"],
            p[f"inputs.{name}.1.weight"],
        )
        for name, x in (("deter", deter), ("stoch", stoch), ("action", action))
    ]
    shared = np.concatenate(parts, -1)
    blocks = []
    for block in range(2):
        x = np.concatenate([h[:, 4 * block : 4 * block + 4], shared], -1)
        blocks.append(x @ p["hidden.weight"][block] + p["hidden.bias"][block])
    hidden = silu_rms(np.concatenate(blocks, -1), p["norm.weight"])
    gates = [hidden[:, 4 * b : 4 * b + 4] @ p["gates.weight"][b] + p["gates.bias"][b] for b in range(2)]
    reset, cand, update = (np.concatenate([g[:, 4 * i : 4 * i + 4] for g in gates], -1) for i in range(3))
    u = sigmoid(update - 1.0)
    expected = u * np.tanh(sigmoid(reset) * cand) + (1.0 - u) * h
    np.testing.assert_allclose(core(deter, stoch, core.embed(action)).detach(), expected, atol=1e-5)


def test_the_layer_norm_gru_by_hand():
    torch.manual_seed(0)
    core = make_core("layer_norm_gru", 8, 6, 2, 4, 1, LayerStyle("silu", "layer", "fan_avg"))
    for parameter in core.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    deter, stoch, action = torch.randn(3, 8), torch.randn(3, 6), torch.randn(3, 2)
    p, h = arrays(core), deter.double().numpy()

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = action.double().numpy() @ p["input.early.weight"].T + p["input.early.bias"]
    x = norm(x + stoch.double().numpy() @ p["input.late.weight"].T, "input.norm")
    x = x * sigmoid(x)
    gates = norm(np.concatenate([x, h], -1) @ p["gates.weight"].T, "norm")
    reset, cand, update = np.split(gates, 3, -1)
    u = sigmoid(update - 1.0)
    expected = u * np.tanh(sigmoid(reset) * cand) + (1.0 - u) * h
    np.testing.assert_allclose(core(deter, stoch, core.embed(action)).detach(), expected, atol=1e-5)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("latent", ["gaussian", "categorical"])
@pytest.mark.parametrize("initial", ["zeros", "learned"])
def test_filtering_a_sequence_is_filtering_step_by_step(core, latent, initial, monkeypatch):
    rssm = make_rssm(core, latent, initial=initial)
    noise = rssm.latent_space.noise((6, 3), CPU)
    tokens, actions = torch.randn(6, 3, 5), torch.randn(6, 3, 2)
    is_first = torch.zeros(6, 3, dtype=torch.bool)
    is_first[0, 0] = is_first[3, 1] = True
    start = Latent(torch.randn(3, 16), torch.randn(3, rssm.latent_space.dim))
    monkeypatch.setattr(rssm.latent_space, "noise", lambda shape, device: noise)
    observed = rssm.observe(tokens, actions, is_first, start)
    latent = start
    for step in range(6):
        monkeypatch.setattr(rssm.latent_space, "noise", lambda shape, device, step=step: noise[step])
        latent = rssm.observe_step(latent, actions[step], tokens[step], is_first[step])
        torch.testing.assert_close(latent.deter, observed.latents.deter[step])
        torch.testing.assert_close(latent.stoch, observed.latents.stoch[step])
    prior = rssm.latent_space.belief(rssm.prior(observed.latents.deter))
    torch.testing.assert_close(observed.prior, prior)


def test_nothing_of_before_survives_an_episodes_start():
    rssm = make_rssm()
    is_first = torch.tensor([True, False])
    token, before = torch.randn(1, 5).expand(2, 5), torch.randn(2, 16)
    results = []
    for scale in (1.0, 5.0):
        torch.manual_seed(1)
        state = Latent(scale * before, torch.randn(2, 12, generator=torch.Generator().manual_seed(2)) * scale)
        results.append(rssm.observe_step(state, scale * torch.ones(2, 2), token, is_first))
    torch.testing.assert_close(results[0].deter[0], results[1].deter[0])
    assert not torch.allclose(results[0].deter[1], results[1].deter[1])


def test_actions_beyond_one_count_as_one():
    rssm = make_rssm()
    latent = rssm.initial(2, CPU)
    noise = rssm.latent_space.noise((2,), CPU)
    far = rssm.imagine_step(latent, torch.tensor([[3.0, -0.5]] * 2), noise)
    near = rssm.imagine_step(latent, torch.tensor([[1.0, -0.5]] * 2), noise)
    torch.testing.assert_close(far.deter, near.deter)


@pytest.mark.parametrize("core", CORES)
def test_gradients_reach_every_parameter(core):
    rssm = make_rssm(core, initial="learned")
    observed = rssm.observe(torch.randn(4, 3, 5), torch.randn(4, 3, 2), torch.rand(4, 3) < 0.5, rssm.initial(3, CPU))
    loss = rssm.latent_space.kl(observed.posterior, observed.prior).sum() + rssm.features(observed.latents).sum()
    gradients = torch.autograd.grad(loss, list(rssm.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_unknown_cores_are_refused():
    with pytest.raises(ConfigError, match="core 'lstm'"):
        make_rssm("lstm")
