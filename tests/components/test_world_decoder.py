import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_lab.components.layers import LayerStyle
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, MultiDiscrete

torch.set_num_threads(1)

PLAIN = LayerStyle("relu", "none", "glorot")  # PlaNet, DreamerV1, V2
LAYER = LayerStyle("silu", "layer", "fan_avg")  # V3, 2023
RMS = LayerStyle("silu", "rms", "fan_in")  # V3, 2024
KINDS = {"unpadded": ("strided", PLAIN), "padded": ("strided", LAYER), "pooled": ("pooled", RMS)}
MAPS = {  # channels in units of depth, and sides, on the way to a 64x64 image
    "unpadded": [(32, 1), (4, 5), (2, 13), (1, 30)],
    "padded": [(8, 4), (4, 8), (2, 16), (1, 32)],
    "pooled": [(4, 4), (4, 8), (3, 16), (2, 32)],
}
FEATURES = 24
DETER = 16
BOTH = {
    "camera": Box((3, 16, 32), torch.uint8, 0, 255),
    "joints": Box((2, 3)),
    "gear": Discrete(4),
    "switches": MultiDiscrete((2, 3)),
    ACTION_MASK: Box((5,), torch.bool),
}


def image(*shape):
    return torch.randint(256, shape, dtype=torch.uint8)


def observations(*lead):
    return {
        "camera": image(*lead, 3, 16, 32),
        "joints": 10 * torch.randn(*lead, 2, 3),
        "gear": torch.randint(4, lead),
        "switches": torch.stack([torch.randint(2, lead), torch.randint(3, lead)], -1),
        ACTION_MASK: torch.ones(*lead, 5, dtype=torch.bool),
    }


def bound(space, deter_dim=0, **options):
    torch.manual_seed(0)
    decoder = WorldDecoder(**options)
    decoder.bind(FEATURES, space, deter_dim)
    return decoder


def shaken(decoder):
    """Biases and norms that are not zeros and ones."""
    for parameter in decoder.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return decoder


def array(tensor):
    return tensor.detach().double().numpy()


def silu(x):
    return x / (1 + np.exp(-x))


def symlog(x):
    return np.sign(x) * np.log1p(np.abs(x))


def normalised(x, layer):
    """Over the last dimension."""
    if type(layer).__name__ == "RMSNorm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * array(layer.weight)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * array(layer.weight) + array(layer.bias)


def linear(x, layer):
    return x @ array(layer.weight).T + array(layer.bias)


def biased(x, layer):
    return x if layer.bias is None else x + array(layer.bias)[:, None, None]


def spread(x, layer, pad):
    """A transposed convolution of stride 2: every pixel adds its kernel; then the padding is cut off."""
    weight, kernel = array(layer.weight), layer.kernel_size[0]  # [in, out, k, k]
    rows, columns = (2 * (side - 1) + kernel for side in x.shape[1:])
    out = np.zeros((weight.shape[1], rows, columns))
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            out[:, 2 * i : 2 * i + kernel, 2 * j : 2 * j + kernel] += np.tensordot(x[:, i, j], weight, 1)
    return biased(out[:, pad : rows - pad, pad : columns - pad], layer)


def doubled(x, layer):
    """Every pixel twice in both directions, then a 5x5 convolution that keeps the size."""
    x = np.pad(np.kron(x, np.ones((1, 2, 2))), ((0, 0), (2, 2), (2, 2)))
    rows, columns = (side - 4 for side in x.shape[1:])
    out = np.zeros((len(layer.weight), rows, columns))
    weight = array(layer.weight)
    for i in range(rows):
        for j in range(columns):
            out[:, i, j] = (weight * x[:, i : i + 5, j : j + 5]).sum((1, 2, 3))
    return biased(out, layer)


def activated(x, norm):
    return silu(normalised(x.transpose(1, 2, 0), norm.norm).transpose(2, 0, 1))


def naive_start(start, features):
    """The block-wise map of 2024, one block after the other; or one linear layer."""
    if isinstance(start, torch.nn.Linear):
        return linear(features, start)
    deter, stoch = features[:DETER], features[DETER:]
    weight, bias = array(start.deter.weight), array(start.deter.bias)
    size = DETER // len(weight)
    blocks = [deter[size * g : size * (g + 1)] @ weight[g] + bias[g, 0] for g in range(len(weight))]
    hidden, norm = start.stoch[0][0], start.stoch[0][1]
    return np.concatenate(blocks) + linear(silu(normalised(linear(stoch, hidden), norm)), start.stoch[1])


def naive_image(decoder, features, kind):
    x = naive_start(decoder.start, array(features)).reshape(decoder.start_shape)
    layers = decoder.layers
    if kind == "unpadded":
        for index in (0, 2, 4):
            x = np.maximum(spread(x, layers[index], 0), 0)
        return spread(x, layers[6], 0) + 0.5
    if kind == "padded":
        for index in (0, 3, 6):
            x = activated(spread(x, layers[index], 1), layers[index + 1])
        return spread(x, layers[9], 1) + 0.5
    x = activated(x, layers[0])
    for index in (3, 7, 11):
        x = activated(doubled(x, layers[index]), layers[index + 1])
    return 1 / (1 + np.exp(-doubled(x, layers[15])))


@pytest.mark.parametrize("kind", KINDS)
def test_maps_have_the_published_shapes(kind):
    images, style = KINDS[kind]
    decoder = bound(Box((3, 64, 64), torch.uint8), DETER, style=style, images=images, depth=2)
    seen = [decoder.images[0].start_shape]
    for layer in decoder.images[0].layers[3 if kind == "pooled" else 0 :]:
        if type(layer).__name__ in ("ReLU", "SiLU"):
            layer.register_forward_hook(lambda _module, _inputs, output: seen.append(tuple(output.shape[1:])))
    prediction = decoder.predict(torch.randn(2, 3, FEATURES))
    assert prediction.shape == (2, 3, 3, 64, 64)
    assert seen == [(2 * width, side, side) for width, side in MAPS[kind]]
    assert 0 <= prediction.min() < prediction.max() <= 1


@pytest.mark.parametrize(
    ("kind", "symlog", "deter_dim"),
    [
        ("unpadded", False, 0),
        ("unpadded", True, DETER),  # these two read all features by one layer, whatever they are
        ("padded", True, DETER),
        ("pooled", True, DETER),
        ("pooled", True, 0),
    ],
)
def test_image_losses_match_loops_over_pixels(kind, symlog, deter_dim):
    images, style = KINDS[kind]
    shape = (3, 64, 80) if kind == "unpadded" else (3, 32, 16)
    space = Box(shape, torch.uint8)
    options = {"units": 5, "style": style, "symlog": symlog, "images": images, "depth": 2}
    decoder = shaken(bound(space, deter_dim, **options))
    features, pixels = torch.randn(1, FEATURES), image(1, *shape)
    assert isinstance(decoder.images[0].start, torch.nn.Linear) == (kind != "pooled" or deter_dim == 0)
    expected = naive_image(decoder.images[0], features[0], kind)
    np.testing.assert_allclose(array(decoder.predict(features)[0]), expected.clip(0, 1), rtol=1e-3, atol=1e-4)
    error = ((expected - pixels[0].double().numpy() / 255) ** 2).sum()
    (loss,) = decoder.losses(features, pixels).values()
    np.testing.assert_allclose(array(loss), [error if symlog else error / 2], rtol=1e-4)


@pytest.mark.parametrize("symlog", [True, False])
def test_vector_losses_match_numpy(symlog):
    decoder = shaken(bound(Box((3,)), units=5, num_layers=2, style=LAYER, symlog=symlog))
    features, x = torch.randn(4, 2, FEATURES), 100 * torch.randn(4, 2, 3)
    stack, head = decoder.vectors
    hidden = array(features)
    for layer, norm in ((stack[0], stack[1]), (stack[3], stack[4])):
        hidden = silu(normalised(linear(hidden, layer), norm))
    mean = linear(hidden, head)
    target = symlog_of(array(x), symlog)
    expected = ((mean - target) ** 2).sum(-1) * (1.0 if symlog else 0.5)
    losses = decoder.losses(features, x)
    assert list(losses) == ["vector"]
    np.testing.assert_allclose(array(losses["vector"]), expected, rtol=1e-4)
    reading = np.sign(mean) * np.expm1(np.abs(mean)) if symlog else mean
    np.testing.assert_allclose(array(decoder.predict(features)), reading, rtol=1e-4, atol=1e-5)


def symlog_of(x, is_squashed):
    return symlog(x) if is_squashed else x


def test_dicts_have_a_loss_for_each_part():
    decoder = bound(BOTH, DETER, units=8, num_layers=1, depth=2)
    features, obs = torch.randn(4, 2, FEATURES), observations(4, 2)
    losses, prediction = decoder.losses(features, obs), decoder.predict(features)
    assert set(losses) == set(prediction) == {"camera", "joints", "gear", "switches"}
    assert all(loss.shape == (4, 2) and loss.dtype == torch.float32 for loss in losses.values())
    assert {key: tuple(leaf.shape) for key, leaf in prediction.items()} == {
        "camera": (4, 2, 3, 16, 32),
        "joints": (4, 2, 2, 3),
        "gear": (4, 2),
        "switches": (4, 2, 2),
    }
    error = symlog(array(prediction["joints"])) - symlog(array(obs["joints"]))
    np.testing.assert_allclose(array(losses["joints"]), (error**2).sum((-2, -1)), rtol=1e-4)
    error = array(prediction["camera"]) - obs["camera"].double().numpy() / 255
    np.testing.assert_allclose(array(losses["camera"]), (error**2).sum((-3, -2, -1)), rtol=1e-4)


@pytest.mark.parametrize("is_squashed", [True, False])
def test_errors_are_means_over_numbers_and_shares_of_wrong_choices(is_squashed):
    decoder = bound(BOTH, DETER, units=8, num_layers=1, depth=2, symlog=is_squashed)
    features, obs = torch.randn(9, 2, FEATURES), observations(9, 2)
    errors, prediction = decoder.errors(features, obs), decoder.predict(features)
    error = symlog_of(array(prediction["joints"]), is_squashed) - symlog_of(array(obs["joints"]), is_squashed)
    np.testing.assert_allclose(array(errors["joints"]), (error**2).mean((-2, -1)), rtol=1e-4)
    error = array(prediction["camera"]) - obs["camera"].double().numpy() / 255
    np.testing.assert_allclose(array(errors["camera"]), (error**2).mean((-3, -2, -1)), rtol=1e-4)
    assert torch.equal(errors["gear"], (prediction["gear"] != obs["gear"]).float())
    wrong = (prediction["switches"] != obs["switches"]).double().numpy()
    np.testing.assert_allclose(array(errors["switches"]), wrong.mean(-1))
    assert 0.0 < wrong.mean() < 1.0


def test_choices_are_learnt_by_cross_entropy():
    decoder = bound({key: BOTH[key] for key in ("gear", "switches")}, units=8, num_layers=1)
    features, obs = torch.randn(3, FEATURES), observations(3)
    losses, prediction = decoder.losses(features, obs), decoder.predict(features)
    logits = array(decoder.vectors(features))
    for row in range(3):
        loss = {"gear": 0.0, "switches": 0.0}
        groups = {"gear": [(0, 4)], "switches": [(4, 6), (6, 9)]}
        for key, spans in groups.items():
            for index, (low, high) in enumerate(spans):
                probs = np.exp(logits[row, low:high]) / np.exp(logits[row, low:high]).sum()
                chosen = obs[key][row].reshape(-1)[index].item()
                loss[key] -= math.log(probs[chosen])
                assert prediction[key][row].reshape(-1)[index] == probs.argmax()
            assert losses[key][row].item() == pytest.approx(loss[key], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_reaches_every_parameter(kind):
    images, style = KINDS[kind]
    space = {**BOTH, "camera": Box((3, 64, 64), torch.uint8)}
    options = {"units": 8, "num_layers": 2, "style": replace(style, activation="elu"), "images": images, "depth": 2}
    decoder = bound(space, DETER, **options)
    losses = decoder.losses(torch.randn(3, FEATURES), {**observations(3), "camera": image(3, 3, 64, 64)})
    sum(losses.values()).sum().backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_training_brings_the_losses_down():
    decoder = bound(BOTH, DETER, units=16, num_layers=1, depth=2)
    features, obs = torch.randn(2, FEATURES), observations(2)
    obs["camera"] = image(2, 3, 1, 1).expand(2, 3, 16, 32)  # noise cannot be learnt
    first = {key: loss.sum().item() for key, loss in decoder.losses(features, obs).items()}
    for _ in range(40):
        decoder.zero_grad()
        sum(decoder.losses(features, obs).values()).sum().backward()
        for parameter in decoder.parameters():
            parameter.data -= 0.02 * parameter.grad.sign()
    last = {key: loss.sum().item() for key, loss in decoder.losses(features, obs).items()}
    assert all(last[key] < 0.6 * first[key] for key in first), (first, last)


def test_initial_weights():
    pooled = bound(Box((3, 64, 64), torch.uint8), DETER, units=64, depth=16).images[0]
    blocks = pooled.start.deter.weight  # the fan is that of all 16 inputs, not of the 2 of a block
    assert blocks.std().item() == pytest.approx(1 / math.sqrt(DETER), rel=0.05)
    assert pooled.layers[7].weight.std().item() == pytest.approx(1 / math.sqrt(64 * 25), rel=0.02)
    assert pooled.layers[7].bias.abs().sum() == 0
    padded = bound(Box((3, 64, 64), torch.uint8), style=LAYER, images="strided", depth=32).images[0]
    assert padded.layers[3].weight.std().item() == pytest.approx(1 / math.sqrt(16 * (128 + 64) / 2), rel=0.02)
    assert padded.layers[3].bias is None
    assert padded.layers[9].bias.shape == (3,)
    unpadded = bound(Box((3, 64, 64), torch.uint8), style=PLAIN, images="strided", depth=32).images[0]
    assert unpadded.start.out_features == 1024
    edge = math.sqrt(6 / (36 * (64 + 32)))
    assert 0.99 * edge < unpadded.layers[4].weight.abs().max() <= edge


def test_parts_of_a_vector_begin_as_if_each_had_its_own_layer():
    decoder = bound({"many": Box((4000,)), "few": Box((40,))}, units=64, num_layers=1, style=LAYER)
    many, few = decoder.vectors[1].weight.split([4000, 40])
    assert many.std().item() == pytest.approx(1 / math.sqrt((64 + 4000) / 2), rel=0.02)
    assert few.std().item() == pytest.approx(1 / math.sqrt((64 + 40) / 2), rel=0.05)


def test_errors():
    with pytest.raises(ConfigError, match="images of 40x40 cannot be halved 4 times by components.world_model.decoder"):
        bound(Box((3, 40, 40), torch.uint8))
    with pytest.raises(ConfigError, match="images of 48x64 .* 64 or more"):
        bound(Box((3, 48, 64), torch.uint8), style=PLAIN, images="strided")
    with pytest.raises(ConfigError, match="decoder.spatial_blocks: 3 blocks do not divide a state of 16 and 8 ch"):
        bound(Box((3, 16, 16), torch.uint8), DETER, depth=2, spatial_blocks=3)
    with pytest.raises(ConfigError, match="unknown images 'x'"):
        WorldDecoder(images="x")
    decoder = bound(Box((2,)))
    with pytest.raises(AssertionError, match="bound once"):
        decoder.bind(FEATURES, Box((2,)))
