"""The U-Net and the transformer: what depends on what, and that nothing is lost by computing parts of it once."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rl_lab.components.action_generators import sinusoids
from rl_lab.components.action_transformer import ActionTransformer
from rl_lab.components.unet1d import Conv1d, FilmBlock, UNet1d
from rl_lab.core import ConfigError

torch.set_num_threads(1)
MAKERS = {"unet": lambda: UNet1d((8, 16), 3, 4, 8), "transformer": lambda: ActionTransformer(16, 2, 2)}


@pytest.fixture(params=MAKERS)
def network(request):
    torch.manual_seed(0)
    made = MAKERS[request.param]()
    made.bind(action_dim=3, length=4, feature_dim=5, history=2)
    return made


def test_a_level_for_all_rows_is_the_same_as_one_for_each(network):
    noisy, seen = torch.randn(6, 4, 3), torch.randn(6, 2, 5)
    prepared = network.prepare(seen)
    alike = network(noisy, torch.full((6,), 0.4), prepared)
    assert alike.shape == (6, 4, 3)
    assert torch.allclose(network(noisy, torch.tensor([0.4]), prepared), alike, atol=1e-6)
    with torch.no_grad():  # a CPU then takes another way for few rows
        few = network(noisy[:1], torch.tensor([0.4]), network.prepare(seen[:1]))
    assert torch.allclose(few, alike[:1], atol=1e-5)


def test_the_output_depends_on_noise_level_and_every_observation(network):
    noisy, seen, level = torch.randn(1, 4, 3), torch.randn(1, 2, 5), torch.tensor([0.4])
    plain = network(noisy, level, network.prepare(seen))
    others = [network(noisy + 1.0, level, network.prepare(seen)), network(noisy, level + 0.2, network.prepare(seen))]
    for place in range(2):
        moved = seen.clone()
        moved[:, place] += 1.0
        others.append(network(noisy, level, network.prepare(moved)))
    assert all(not torch.allclose(other, plain, atol=1e-4) for other in others)
    for other in others:
        other.sum().backward()
    names = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert names == []


def test_later_actions_do_not_change_earlier_ones_of_the_transformer():
    network = ActionTransformer(16, 2, 2)
    network.bind(3, 6, 5, 2)
    noisy, seen, level = torch.randn(1, 6, 3), torch.randn(1, 2, 5), torch.tensor([0.5])
    plain = network(noisy, level, network.prepare(seen))
    moved = noisy.clone()
    moved[:, 3] += 1.0
    found = network(moved, level, network.prepare(seen))
    assert torch.allclose(found[:, :3], plain[:, :3], atol=1e-6)
    assert not torch.allclose(found[:, 3:], plain[:, 3:], atol=1e-3)


def test_scales_and_shifts_are_one_linear_layer_of_both():
    torch.manual_seed(0)
    network = UNet1d((8, 16), 3, 4, 8)
    network.bind(3, 4, 5, 2)
    seen, level, films = torch.randn(2, 2, 5), torch.tensor([0.1, 0.9]), []
    for block in network._blocks():
        block.register_forward_pre_hook(lambda _, inputs: films.append(inputs[1]))
    network(torch.randn(2, 4, 3), level, network.prepare(seen))
    both = torch.cat([network.embed(sinusoids(level, 8)), seen.flatten(1)], -1)
    wanted = F.linear(F.mish(both), network.film.weight, network.film.bias)
    assert torch.allclose(torch.cat(films, 1).squeeze(-1), wanted, atol=1e-5)
    assert len(films) == 2 * (2 + 1 + 1)  # two levels down, the middle, one level up


def test_a_film_block_is_what_it_says():
    torch.manual_seed(0)
    block, x = FilmBlock(4, 8, 3, 2), torch.randn(2, 4, 6)
    film = torch.randn(2, 16, 1)
    first = F.mish(F.group_norm(F.conv1d(x, *block.first.convolution.parameters(), padding=1), 2))
    second = F.conv1d(film[:, :8] * first + film[:, 8:], *block.second.convolution.parameters(), padding=1)
    wanted = F.mish(F.group_norm(second, 2)) + F.conv1d(x, *block.shortcut.parameters())
    assert torch.allclose(block(x, film), wanted, atol=1e-5)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 1), (3, 2), (1, 1)])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_few_rows_on_a_cpu_are_convolved_by_a_product(kernel, stride, rows):
    layer, x = Conv1d(6, 10, kernel, stride, kernel // 2), torch.randn(rows, 6, 8)
    wanted = nn.Conv1d.forward(layer, x)
    with torch.no_grad():
        found = layer(x)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, atol=1e-6)


def test_sizes_that_do_not_fit_are_one_line():
    with pytest.raises(
        ConfigError, match=r"^UNet1d: needs channels that num_groups divides and an odd kernel_size, not"
    ):
        UNet1d((12,), num_groups=8)
    with pytest.raises(
        ConfigError, match=r"^algorithm.prediction_horizon: 10 actions cannot be halved 2 times, as 3 le"
    ):
        UNet1d((8, 8, 8)).bind(2, 10, 3, 1)
    with pytest.raises(ConfigError, match=r"^UNet1d: level_dim=7 must be even$"):
        UNet1d((8, 8), level_dim=7)
    with pytest.raises(ConfigError, match=r"^ActionTransformer: 2 x num_heads=3 does not divide dim=16$"):
        ActionTransformer(16, 1, 3)
