"""What was seen as features: limits of the data, pictures, crops; and the average of the weights."""

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.components.chunk_policy import HistoryEncoder
from rl_lab.components.resnet import ResNet, halved, spatial_softmax
from rl_lab.components.unit_range import ObservationRange, UnitRange
from rl_lab.components.weight_average import WeightAverage
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete

torch.set_num_threads(1)


def test_numbers_are_mapped_by_their_own_limits_and_back():
    unit = UnitRange(3)
    x = torch.tensor([[1.0, -4.0, 7.0], [3.0, 4.0, 7.0]])
    assert torch.equal(unit(x), x)
    assert not unit.is_fitted
    unit.fit(x.amin(0), x.amax(0))
    assert unit(x).tolist() == [[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]  # the last one stands still
    assert torch.allclose(unit.inverse(unit(x)), x)
    assert unit(torch.tensor([4.0, 0.0, 8.0])).tolist() == [2.0, 0.0, 1.0]
    assert unit.is_fitted


def test_an_observation_is_a_vector_and_pictures():
    space = {
        "gear": Discrete(3),
        "camera.rgb": Box((3, 4, 4), torch.uint8),
        "grid": Box((2, 2)),
        ACTION_MASK: Box((2,), torch.bool),
    }
    ranges = ObservationRange(space)
    grid = torch.arange(8.0).view(2, 2, 2)
    ranges.fit({"grid": grid.amin(0), "gear": None}, {"grid": grid.amax(0), "gear": None})
    pictures = torch.randint(0, 256, (2, 5, 3, 4, 4), dtype=torch.uint8)
    obs = {"gear": torch.full((2, 5), 2), "camera.rgb": pictures, "grid": grid[:, None].expand(2, 5, 2, 2)}
    vector, found = ranges(obs | {ACTION_MASK: torch.ones(2, 5, 2, dtype=torch.bool)})
    assert ranges.vector_dim == vector.shape[-1] == 7
    assert vector[0, 3].tolist() == [0.0, 0.0, 1.0, -1.0, -1.0, -1.0, -1.0]
    assert vector[1, 0].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert torch.equal(found["camera.rgb"], pictures)
    only = ObservationRange(Box((3, 4, 4), torch.uint8))
    assert only(pictures)[0].shape == (2, 5, 0)


def test_each_camera_has_an_encoder_of_its_own():
    torch.manual_seed(0)
    template = ResNet((8, 16), 1, num_keypoints=4, output_dim=6)
    encoder = HistoryEncoder(2, {"left": (3, 20, 20), "right": (1, 24, 16)}, template)
    assert encoder.output_dim == 14
    pictures = {
        "left": torch.randint(0, 256, (2, 3, 3, 20, 20), dtype=torch.uint8),
        "right": torch.randint(0, 256, (2, 3, 1, 24, 16), dtype=torch.uint8),
    }
    vectors = torch.randn(2, 3, 2)
    features = encoder((vectors, pictures))
    assert features.shape == (2, 3, 14)
    assert torch.equal(features[..., :2], vectors)
    one = encoder((vectors[1:, 2:], {name: picture[1:, 2:] for name, picture in pictures.items()}))
    assert torch.allclose(one[0, 0], features[1, 2], atol=1e-5)  # no row changes another
    with pytest.raises(
        ConfigError, match=r"^components.encoder: the picture 'left' of the environment needs one \(ResN"
    ):
        HistoryEncoder(2, {"left": (3, 20, 20)}, None)


def test_a_random_part_is_seen_while_it_learns_and_the_middle_later():
    torch.manual_seed(0)
    encoder = ResNet((8, 16), 1, 4, 6, crop=12)
    encoder.bind((3, 16, 16))
    pictures = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    middle = encoder(pictures)
    border = pictures.clone()
    border[..., 2:14, 2:14] = pictures[..., 2:14, 2:14]
    border[..., :2, :] = 0
    assert torch.equal(encoder(border), middle)
    assert not torch.equal(encoder(pictures, augment=True), encoder(pictures, augment=True))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())
    with pytest.raises(
        ConfigError, match=r"^components.encoder.crop: 12 pixels are more than pictures of \[3, 8, 20\] h"
    ):
        ResNet((8,), crop=12).bind((3, 8, 20))


@pytest.mark.parametrize("size", [(8, 8), (7, 10)])
def test_maps_are_halved_as_max_pooling_does(size):
    maps = torch.rand(2, 3, *size)
    assert torch.equal(halved(maps), nn.functional.max_pool2d(maps, 3, 2, 1))


def test_keypoints_are_mean_places():
    maps = torch.full((1, 2, 3, 5), -1e9)
    maps[0, 0, 2, 0] = 0.0  # bottom left
    maps[0, 1, 0, [1, 3]] = 0.0  # top, both sides of the middle
    assert spatial_softmax(maps)[0].tolist() == pytest.approx([-1.0, 0.0, 1.0, -1.0])


def test_the_average_follows_closely_at_first_and_slowly_later():
    torch.manual_seed(0)
    module = nn.Linear(2, 1)
    average = WeightAverage(module, power=0.75, most=0.9)
    wanted = module.weight.detach().numpy().copy().astype(np.float64)
    for update in range(40):
        with torch.no_grad():
            module.weight.copy_(torch.randn(1, 2))
        average.update(module)
        keep = min(0.9, 1 - (1 + update) ** -0.75)
        wanted = keep * wanted + (1 - keep) * module.weight.detach().numpy()
        assert average.module.weight.numpy() == pytest.approx(wanted, abs=1e-5)
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert average.updates.item() == 40
