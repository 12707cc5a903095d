"""Dreams against loops over controllers and dreams; what temperature does; forecasts and films of them."""

import pytest
import torch

from rl_lab.components.controller import Controller
from rl_lab.components.dream_pictures import Model, dream_pictures, forecast
from rl_lab.components.dreams import Dreams, Place
from rl_lab.components.layers import LayerStyle
from rl_lab.components.mdn_rnn import MDNRNN, MemoryState
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.vae import VAE
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.core import Box, EnvSpec

SPEC = EnvSpec("x", Box((3,)), Box((2,), low=-2.0, high=2.0))
CODE = ModelActions(SPEC, "WorldModels")
STYLE = LayerStyle(activation="relu", norm="none", init="glorot")


def make_parts(temperature=1.0):
    torch.manual_seed(0)
    memory, controller = MDNRNN(6, 3), Controller()
    memory.bind(4, 2)
    with torch.no_grad():
        memory.out.weight.mul_(3.0)
    controller.bind(4 + 6, CODE)
    return memory, controller, Dreams(memory, controller, temperature=temperature)


def likeliest(mixture, temperature=1.0):
    """Stand in for a draw: the mean of the likeliest normal."""
    return mixture.means.gather(-1, mixture.logits.argmax(-1, keepdim=True)).squeeze(-1)


@torch.no_grad()
def test_returns_are_those_of_one_dream_after_the_other(monkeypatch):
    monkeypatch.setattr("rl_lab.components.dreams.mixture_sample", likeliest)
    memory, controller, dreams = make_parts()
    parameters, latents = torch.randn(5, controller.num_parameters), torch.randn(3, 4)
    start = Place(MemoryState(torch.randn(3, 6).tanh(), torch.randn(3, 6)), latents)
    is_over = torch.tensor([False, True, False])
    found = dreams.returns(parameters, start, is_over, 7)
    for i in range(5):
        for j in range(3):
            state, z, total, alive = (
                MemoryState(*(leaf[j : j + 1] for leaf in start.memory)),
                latents[j : j + 1],
                0.0,
                1.0,
            )
            for _ in range(7):
                action = controller(parameters[i : i + 1], torch.cat([z, state.hidden], -1)[None])[0]
                state = memory.advance(state, z, action)
                outlook = memory.outlook(state.hidden)
                total += alive * float(outlook.rewards)
                alive *= 1.0 - float(outlook.ends.sigmoid())
                z = likeliest(outlook.latents)
            assert float(found[i, j]) == pytest.approx(0.0 if is_over[j] else total, abs=1e-5)


@torch.no_grad()
def test_a_higher_temperature_spreads_dreams():
    spreads = []
    for temperature in (0.1, 1.0, 3.0):
        _, controller, dreams = make_parts(temperature)
        start = Place(MemoryState(torch.zeros(400, 6), torch.zeros(400, 6)), torch.zeros(400, 4))
        ((place, rewards, ends),) = dreams.steps(torch.zeros(1, controller.num_parameters), start, 1)
        spreads.append(float(place.latents.std(0).mean()))
        assert rewards.shape == ends.shape == (1, 400)
    assert spreads[0] < 0.7 * spreads[1] < 0.7 * spreads[2]


def make_vae(space):
    vision = {"units": 4, "num_layers": 1, "style": STYLE, "symlog": False, "images": "strided", "depth": 1}
    vae = VAE(WorldEncoder(**vision), WorldDecoder(**vision), 4)
    vae.bind(space)
    return vae


def rows(length=8, batch=2):
    generator = torch.Generator().manual_seed(0)
    is_first = torch.zeros(batch, length, dtype=torch.bool)
    is_first[0, 1], is_first[1, 5] = True, True
    is_terminal = torch.zeros(batch, length, dtype=torch.bool)
    is_terminal[1, 4] = True
    return {
        "observations": torch.randn(batch, length, 3, generator=generator),
        "actions": torch.rand(batch, length, 2, generator=generator) * 4 - 2,
        "rewards": torch.randn(batch, length, generator=generator),
        "is_first": is_first,
        "is_terminal": is_terminal,
    }


@torch.no_grad()
def test_a_forecast_follows_what_is_seen_and_then_what_is_expected(monkeypatch):
    monkeypatch.setattr("rl_lab.components.dream_pictures.mixture_sample", likeliest)
    memory, _, _ = make_parts()
    vae, batch = make_vae(SPEC.observation), rows()
    found = forecast(Model(vae, memory, CODE.read), batch, context=3, horizon=4)
    assert found.num_seen == 3
    assert torch.equal(found.is_known, torch.tensor([[True, True], [True, True], [True, False], [True, False]]))
    for b in range(2):
        obs, state = batch["observations"][b], memory.initial(1, torch.device("cpu"))
        z = vae(obs[0]).mean[None]
        for t in range(1, 7):
            if batch["is_first"][b, t - 1]:
                state = memory.initial(1, torch.device("cpu"))
            state = memory.advance(state, z, batch["actions"][b, t][None] / 2.0)
            outlook = memory.outlook(state.hidden)
            z = vae(obs[t]).mean[None] if t < 3 else likeliest(outlook.latents)
            shown, true = found.shown["vector"]
            torch.testing.assert_close(shown[t, b], vae.decoder.predict(z)[0])
            assert torch.equal(true[t, b], obs[t])
            if t >= 3:
                error = float((vae.decoder.predict(z)[0] - obs[t]).square().mean())
                assert float(found.errors["vector"][t - 3, b]) == pytest.approx(error, rel=1e-4)
                miss = float(outlook.rewards - batch["rewards"][b, t])
                assert float(found.reward_errors[t - 3, b]) == pytest.approx(miss**2, rel=1e-4, abs=1e-7)
                goes_on, truth = (float(part[t - 3, b]) for part in found.goes_on)
                assert goes_on == pytest.approx(1.0 - float(outlook.ends.sigmoid()), abs=1e-6)
                assert truth == float(not batch["is_terminal"][b, t])


@torch.no_grad()
def test_dreams_are_films_of_pictures_and_curves_of_vectors():
    space = {"camera": Box((3, 64, 64), dtype=torch.uint8), "speed": Box((6,))}
    vae = make_vae(space)
    latents = torch.randn(9, 2, 4)
    pictures = dream_pictures(vae, latents)
    film = pictures["dream_camera"].pixels
    assert (film.shape, film.dtype) == ((9, 64, 64 + 4 + 64, 3), torch.uint8)
    expected = vae.decoder.predict(latents[4, 1])["camera"]  # the fifth frame of the second dream
    assert torch.equal(film[4, :, 68:], (expected * 255.0).round().to(torch.uint8).movedim(0, -1))
    assert pictures["dream_speed"].pixels.shape == (4 * (48 + 4) + 3 * 4, 2 * (160 + 4) + 4, 3)  # four of six numbers
