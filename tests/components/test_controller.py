"""Controllers from vectors of parameters, against loops over them."""

import math
from itertools import pairwise

import pytest
import torch

from rl_lab.components.controller import Controller
from rl_lab.components.model_actions import ModelActions
from rl_lab.core import Box, Discrete, EnvSpec

NUMBERS = EnvSpec("numbers", Box((3,)), Box((3,), low=-1.0, high=1.0))
CHOICE = EnvSpec("choice", Box((3,)), Discrete(4))
MIXED = EnvSpec("mixed", Box((3,)), {"gear": Discrete(2), "wheel": Box((1,), low=-1.0, high=1.0)})


def make_controller(spec, hidden_dims=(), input_dim=3):
    controller = Controller(hidden_dims)
    controller.bind(input_dim, ModelActions(spec, "WorldModels"))
    return controller


def naive(parameters, x, widths):
    """Return the outputs of one controller for one row: of each layer the weights [in, out], then the biases."""
    numbers, x = iter(parameters.tolist()), x.tolist()
    for index, (width, out) in enumerate(pairwise(widths)):
        x = [math.tanh(value) for value in x] if index else x
        weights = [[next(numbers) for _ in range(out)] for _ in range(width)]
        bias = [next(numbers) for _ in range(out)]
        x = [sum(x[i] * weights[i][j] for i in range(width)) + bias[j] for j in range(out)]
    assert next(numbers, None) is None
    return x


@pytest.mark.parametrize("hidden", [(), (5,), (4, 2)])
def test_every_controller_acts_by_its_own_parameters(hidden):
    torch.manual_seed(0)
    controller = make_controller(NUMBERS, hidden)
    parameters, features = torch.randn(4, controller.num_parameters), torch.randn(4, 2, 3)
    found = controller(parameters, features)
    for i in range(4):
        for j in range(2):
            expected = naive(parameters[i], features[i, j], (3, *hidden, 3))
            assert found[i, j].tolist() == pytest.approx([math.tanh(value) for value in expected], abs=1e-5)


def test_the_linear_one_of_car_racing_has_867_parameters():
    assert make_controller(NUMBERS, input_dim=32 + 256).num_parameters == 867  # Ha and Schmidhuber, 2018


def test_of_choices_the_largest_that_is_allowed_is_taken():
    torch.manual_seed(0)
    controller = make_controller(CHOICE)
    parameters, features = torch.randn(5, controller.num_parameters), torch.randn(5, 3, 3)
    mask = torch.rand(5, 3, 4) < 0.6
    mask[..., 2] = True
    for allowed in (None, mask):
        found = controller(parameters, features, allowed)
        assert torch.equal(found.sum(-1), torch.ones(5, 3))
        for i in range(5):
            for j in range(3):
                scores = naive(parameters[i], features[i, j], (3, 4))
                open_ones = [k for k in range(4) if allowed is None or allowed[i, j, k]]
                assert int(found[i, j].argmax()) == max(open_ones, key=scores.__getitem__)


def test_numbers_and_choices_at_once():
    torch.manual_seed(0)
    controller = make_controller(MIXED)
    parameters, features = torch.randn(1, controller.num_parameters), torch.randn(1, 1, 3)
    number, *scores = naive(parameters[0], features[0, 0], (3, 3))
    found = controller(parameters, features)[0, 0]
    assert float(found[0]) == pytest.approx(math.tanh(number), abs=1e-5)
    assert found[1:].tolist() == ([1.0, 0.0] if scores[0] > scores[1] else [0.0, 1.0])
