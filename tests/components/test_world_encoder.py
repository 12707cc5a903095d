import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from rl_lab.components.layers import LayerStyle
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, MultiDiscrete

torch.set_num_threads(1)

PLAIN = LayerStyle("relu", "none", "glorot")  # PlaNet, DreamerV1, V2
LAYER = LayerStyle("silu", "layer", "fan_avg")  # V3, 2023
RMS = LayerStyle("silu", "rms", "fan_in")  # V3, 2024
KINDS = {"unpadded": ("strided", PLAIN), "padded": ("strided", LAYER), "pooled": ("pooled", RMS)}
SHAPES = {  # channels in units of depth, and sides, of a 64x64 image
    "unpadded": [(1, 31), (2, 14), (4, 6), (8, 2)],
    "padded": [(1, 32), (2, 16), (4, 8), (8, 4)],
    "pooled": [(2, 32), (3, 16), (4, 8), (4, 4)],
}
BOTH = {
    "camera": Box((3, 16, 32), torch.uint8, 0, 255),
    "joints": Box((2, 3)),
    "gear": Discrete(4),
    "switches": MultiDiscrete((2, 3)),
    "time": Box(()),
    ACTION_MASK: Box((5,), torch.bool),
}


def image(*shape):
    return torch.randint(256, shape, dtype=torch.uint8)


def observations(*lead):
    return {
        "camera": image(*lead, 3, 16, 32),
        "joints": torch.randn(*lead, 2, 3),
        "gear": torch.randint(4, lead),
        "switches": torch.stack([torch.randint(2, lead), torch.randint(3, lead)], -1),
        "time": torch.randn(lead),
        ACTION_MASK: torch.ones(*lead, 5, dtype=torch.bool),
    }


def bound(space, **options):
    torch.manual_seed(0)
    encoder = WorldEncoder(**options)
    encoder.bind(space)
    return encoder


def array(tensor):
    return tensor.detach().double().numpy()


def normalised(x, layer, kind):
    """Over the last dimension."""
    if kind == "rms":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * array(layer.weight)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * array(layer.weight) + array(layer.bias)


def silu(x):
    return x / (1 + np.exp(-x))


def convolved(x, layer, stride, pad):
    """One output pixel after the other, of an image [C, H, W]."""
    weight, kernel = array(layer.weight), layer.kernel_size[0]
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    rows, columns = ((side - kernel) // stride + 1 for side in x.shape[1:])
    out = np.zeros((len(weight), rows, columns))
    for i in range(rows):
        for j in range(columns):
            patch = x[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            out[:, i, j] = (weight * patch).sum((1, 2, 3))
    return out if layer.bias is None else out + array(layer.bias)[:, None, None]


def naive_image_tokens(encoder, pixels, kind):
    x = pixels.double().numpy() / 255 - 0.5
    for index in range(4):
        if kind == "unpadded":
            conv = encoder[2 * index]
            x = np.maximum(convolved(x, conv, 2, 0), 0)
            continue
        if kind == "padded":
            conv, norm = encoder[3 * index], encoder[3 * index + 1]
            x = convolved(x, conv, 2, 1)
        else:
            conv, norm = encoder[4 * index], encoder[4 * index + 2]
            x = convolved(x, conv, 1, 2)
            x = np.maximum(np.maximum(x[:, ::2, ::2], x[:, 1::2, ::2]), np.maximum(x[:, ::2, 1::2], x[:, 1::2, 1::2]))
        x = silu(normalised(x.transpose(1, 2, 0), norm.norm, KINDS[kind][1].norm).transpose(2, 0, 1))
    return x.ravel()


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_have_the_published_shapes(kind):
    images, style = KINDS[kind]
    encoder = bound(Box((3, 64, 64), torch.uint8), style=style, images=images, depth=2)
    seen = []
    for layer in encoder.images[0]:
        if type(layer).__name__ in ("ReLU", "SiLU"):
            layer.register_forward_hook(lambda _module, _inputs, output: seen.append(tuple(output.shape[1:])))
    tokens = encoder(image(2, 3, 3, 64, 64))
    assert seen == [(2 * width, side, side) for width, side in SHAPES[kind]]
    width, side = SHAPES[kind][-1]
    assert tokens.shape == (2, 3, 2 * width * side * side)
    assert encoder.output_dim == tokens.shape[-1]


def test_parameters_of_published_sizes():
    planet = bound(Box((3, 64, 64), torch.uint8), style=PLAIN, images="strided", depth=32)
    assert planet.output_dim == 1024
    widths = [3, 32, 64, 128, 256]
    assert sum(p.numel() for p in planet.parameters()) == sum(16 * a * b + b for a, b in pairwise(widths))
    small = bound(Box((3, 64, 64), torch.uint8), depth=4)
    widths = [3, 8, 12, 16, 16]  # each stage: weights, bias, scale of the norm
    assert sum(p.numel() for p in small.parameters()) == sum(25 * a * b + 2 * b for a, b in pairwise(widths))


@pytest.mark.parametrize("kind", KINDS)
def test_image_tokens_match_a_loop_over_pixels(kind):
    images, style = KINDS[kind]
    shape = (3, 64, 80) if kind == "unpadded" else (3, 32, 16)
    encoder = bound(Box(shape, torch.uint8), style=style, images=images, depth=3)
    for parameter in encoder.parameters():  # biases and norms, too
        parameter.data += 0.1 * torch.randn_like(parameter)
    pixels = image(*shape)
    expected = naive_image_tokens(encoder.images[0], pixels, kind)
    tokens = array(encoder(pixels.unsqueeze(0))[0])
    assert len(expected) == encoder.output_dim
    np.testing.assert_allclose(tokens, expected, rtol=1e-3, atol=1e-5)


def test_float_images_are_taken_to_lie_between_zero_and_one():
    encoder = bound(Box((1, 16, 16), torch.uint8), depth=2)
    pixels = image(2, 1, 16, 16)
    np.testing.assert_allclose(array(encoder(pixels.float() / 255)), array(encoder(pixels)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("symlog", [True, False])
def test_vector_tokens_match_numpy(symlog):
    encoder = bound(Box((3,)), units=5, num_layers=2, style=LAYER, symlog=symlog)
    x = torch.tensor([[0.5, -1000.0, 3.0], [0.0, 1.0, -2.0]])
    hidden = array(x)
    hidden = np.sign(hidden) * np.log1p(np.abs(hidden)) if symlog else hidden
    for linear, norm in ((encoder.vectors[0], encoder.vectors[1]), (encoder.vectors[3], encoder.vectors[4])):
        hidden = silu(normalised(hidden @ array(linear.weight).T + array(linear.bias), norm, "layer"))
    np.testing.assert_allclose(array(encoder(x)), hidden, rtol=1e-4, atol=1e-5)
    assert encoder.output_dim == 5


def test_dicts_have_vectors_and_images_side_by_side():
    encoder = bound(BOTH, units=7, num_layers=0, depth=2)
    obs = observations(4, 2)
    tokens = encoder(obs)
    vector_dim = 6 + 1 + 4 + 2 + 3  # joints, time, gear, switches; no mask
    assert tokens.shape == (4, 2, vector_dim + 8 * 1 * 2)
    numbers = np.concatenate([array(obs["joints"])[3, 1].ravel(), array(obs["time"])[3, 1, None]])
    choices = np.concatenate(
        [np.eye(4)[obs["gear"][3, 1]], np.eye(2)[obs["switches"][3, 1, 0]], np.eye(3)[obs["switches"][3, 1, 1]]]
    )
    expected = np.concatenate([np.sign(numbers) * np.log1p(np.abs(numbers)), choices])  # choices are not squashed
    np.testing.assert_allclose(array(tokens[3, 1, :vector_dim]), expected, rtol=1e-5)
    np.testing.assert_allclose(array(tokens[..., vector_dim:]), array(encoder.images[0](obs["camera"])), rtol=1e-6)


def test_choices_alone_are_read():
    encoder = bound(Discrete(3), units=4, num_layers=0)
    assert torch.equal(encoder(torch.tensor([[2], [0]])), torch.tensor([[[0.0, 0, 1]], [[1, 0, 0]]]))


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_reaches_every_parameter(kind):
    images, style = KINDS[kind]
    space = {**BOTH, "camera": Box((3, 64, 64), torch.uint8)}
    encoder = bound(space, units=8, num_layers=2, style=replace(style, activation="elu"), images=images, depth=4)
    obs = {**observations(3), "camera": image(3, 3, 64, 64)}
    encoder(obs).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_initial_weights_of_convolutions():
    pooled = bound(Box((3, 16, 16), torch.uint8), depth=16).images[0]
    weight = pooled[4].weight  # 32 -> 48 channels, 5x5
    bound_at = 2 * 1.1368 / math.sqrt(32 * 25)
    assert weight.abs().max() <= bound_at
    assert weight.abs().max() > 0.99 * bound_at
    assert weight.std().item() == pytest.approx(1 / math.sqrt(32 * 25), rel=0.02)
    assert pooled[4].bias.abs().sum() == 0
    assert torch.equal(pooled[6].norm.weight, torch.ones(48))
    padded = bound(Box((3, 16, 16), torch.uint8), style=LAYER, images="strided", depth=32).images[0]
    assert padded[3].weight.std().item() == pytest.approx(1 / math.sqrt(16 * (32 + 64) / 2), rel=0.02)
    assert padded[3].bias is None
    unpadded = bound(Box((3, 64, 64), torch.uint8), style=PLAIN, images="strided", depth=32).images[0]
    edge = math.sqrt(6 / (16 * (32 + 64)))
    assert 0.99 * edge < unpadded[2].weight.abs().max() <= edge
    assert unpadded[2].weight.std().item() == pytest.approx(edge / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize(
    ("kind", "height", "width", "least"), [("pooled", 60, 60, 16), ("padded", 64, 72, 16), ("unpadded", 32, 64, 48)]
)
def test_images_that_cannot_be_halved_are_named(kind, height, width, least):
    images, style = KINDS[kind]
    message = (
        f"environment: images of {height}x{width} cannot be halved 4 times by components.world_model.encoder"
        rf" \(sides must be multiples of 16, {least} or more\)"
    )
    with pytest.raises(ConfigError, match=message):
        bound(Box((3, height, width), torch.uint8), style=style, images=images)


def test_other_errors():
    with pytest.raises(ConfigError, match=r"unknown images .pool.; did you mean .pooled.\? \(choices: pooled, str"):
        WorldEncoder(images="pool")
    with pytest.raises(ConfigError, match="environment: the observation has no part"):
        bound({ACTION_MASK: Box((2,), torch.bool)})
    encoder = bound(Box((2,)))
    with pytest.raises(AssertionError, match="bound once"):
        encoder.bind(Box((2,)))
