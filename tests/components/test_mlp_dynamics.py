"""The smallest world model: states that are observations, an MLP between them, and what it learns from."""

import numpy as np
import pytest
import torch

from rl_lab.components.dynamics import Latent
from rl_lab.components.identity_representation import IdentityDecoder, IdentityEncoder
from rl_lab.components.imagination import Imagination
from rl_lab.components.layers import LayerStyle
from rl_lab.components.mlp_dynamics import MLPDynamics
from rl_lab.components.scalar_heads import ScalarHead
from rl_lab.components.world_actors import WorldActor
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.components.world_model import KLTerms, WorldModel
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec
from tests.components.test_world_model import make_batch

torch.set_num_threads(1)
STYLE = LayerStyle("silu", "none", "glorot")
SPEC = EnvSpec("fixed", Box((3,)), Box((2,), low=-2.0, high=2.0))
DICT = {"place": Box((2, 2)), "kind": Discrete(3), "action_mask": Box((2,))}


def small_model(spec=SPEC, encoder=None, decoder=None, **options):
    torch.manual_seed(0)
    encoder, decoder = encoder or IdentityEncoder(), decoder or IdentityDecoder()
    reward = ScalarHead(8, 1, STYLE, kind="gaussian", scale=1.0)
    model = WorldModel(encoder, MLPDynamics(8, 1, STYLE), decoder, reward, kl=KLTerms("mean", 0.0), **options)
    model.bind(spec, "Test")
    return model


def test_an_observation_passes_through_and_back():
    model = small_model(EnvSpec("parts", DICT, Discrete(2)))
    obs = {"place": torch.randn(5, 2, 2), "kind": torch.tensor([0, 1, 2, 1, 0]), "action_mask": torch.ones(5, 2)}
    latent = model.observe_step(model.initial(5, torch.device("cpu")), torch.zeros(5, 2), obs, torch.ones(5).bool())
    features = model.rssm.features(latent)
    assert features.shape == (5, model.feature_dim) == (5, 7)
    seen = model.decoder.predict(features)
    assert torch.equal(seen["place"], obs["place"])
    assert torch.equal(seen["kind"], obs["kind"])
    assert all(bool((error == 0).all()) for error in model.decoder.errors(features, obs).values())
    assert not list(model.encoder.parameters()) + list(model.decoder.parameters())


def naive_next(model, state, action):
    """Return the next state in float64; actions of [-2, 2] count half, and are cut there."""
    first, second = model.rssm.change[0][0], model.rssm.change[1]
    x = np.concatenate([state, np.clip(action / 2.0, -1.0, 1.0)])
    hidden = first.weight.detach().double().numpy() @ x + first.bias.detach().double().numpy()
    hidden = hidden / (1.0 + np.exp(-hidden))
    return state + second.weight.detach().double().numpy() @ hidden + second.bias.detach().double().numpy()


def test_the_loss_is_the_squared_error_of_every_step_within_an_episode():
    model, batch = small_model(), make_batch()  # an episode begins in row 3 of sequence 1
    loss = model.losses(batch)
    errors = []
    for b in range(3):
        for t in range(5):
            is_known = t > 0 and not batch["is_first"][b, t]
            before, now = (batch["observations"][b, row].double().numpy() for row in (t - 1, t))
            action = batch["actions"][b, t].double().numpy()
            errors.append(0.5 * ((naive_next(model, before, action) - now) ** 2).sum() if is_known else 0.0)
    assert loss.terms["kl"].item() == pytest.approx(np.mean(errors), rel=1e-5)
    assert loss.terms["decoder_vector"].item() == 0.0
    assert torch.equal(loss.features, batch["observations"].transpose(0, 1))
    loss.total.backward()
    assert all(bool(parameter.grad.any()) for parameter in model.parameters())


def test_dreams_are_steps_of_the_network():
    model = small_model()
    start, actions = torch.randn(4, 3), 3.0 * torch.randn(6, 4, 2)  # some beyond their bounds
    found = model.rssm.imagine(Latent(start, start[:, :0]), actions)
    assert found.stoch.shape == (6, 4, 0)
    for b in range(4):
        state = start[b].double().numpy()
        for t in range(6):
            state = naive_next(model, state, 2.0 * actions[t, b].double().numpy())
            np.testing.assert_allclose(found.deter[t, b].detach().numpy(), state, rtol=1e-4, atol=1e-5)
    single = model.rssm.imagine_step(Latent(start, start[:, :0]), actions[0])
    assert torch.equal(single.deter, found.deter[0])


def test_a_policy_can_learn_through_it():
    model, actor = small_model(), WorldActor(8, 1, STYLE)
    actor.bind(model.feature_dim, SPEC)
    latents = model.observe(make_batch()).latents
    dream = Imagination(model.rssm, actor)(Latent(*(leaf.flatten(0, 1) for leaf in latents)), 5)
    assert dream.features.shape == (6, 15, 3)
    model.reward(dream.features).sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in actor.parameters())


def test_a_learned_representation_goes_with_it_too():
    image = EnvSpec("image", Box((3, 32, 32), dtype=torch.uint8), Discrete(3))
    style = LayerStyle()
    model = small_model(image, WorldEncoder(8, 1, style, depth=2), WorldDecoder(8, 1, style, depth=2))
    batch = make_batch(image) | {"observations": torch.randint(256, (3, 5, 3, 32, 32), dtype=torch.uint8)}
    loss = model.losses(batch)
    assert loss.terms["decoder_image"].item() > 0.0
    loss.total.backward()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, r"^components\.world_model\.encoder: an image is no state"),
        ({"encoder": WorldEncoder(8, 1, LayerStyle(), depth=2)}, r"^components\.world_model\.decoder: an image is no"),
    ],
)
def test_an_image_is_no_state(parts, message):
    with pytest.raises(ConfigError, match=message):
        small_model(EnvSpec("image", Box((3, 32, 32), dtype=torch.uint8), Discrete(3)), **parts)


def test_a_state_that_is_too_small_for_an_observation_is_named():
    with pytest.raises(ConfigError, match="a state of 2 numbers cannot begin with an observation of 3"):
        small_model(encoder=WorldEncoder(2, 1, LayerStyle()))
