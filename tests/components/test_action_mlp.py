"""The perceptron over chunks of actions, against the same layers by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from rl_lab.components.action_mlp import ActionMLP
from rl_lab.components.flow_matching import FlowMatching
from rl_lab.core import ConfigError


def test_it_reads_all_actions_the_level_and_all_that_was_seen():
    torch.manual_seed(0)
    network = ActionMLP((5,), level_dim=4)
    network.bind(2, 3, 4, 2)  # chunks of three actions of two numbers; two observations of four
    noisy, seen = torch.randn(6, 3, 2), torch.randn(6, 2, 4)
    level = torch.rand(6)
    waves = [[math.sin(100 * x), math.sin(x / 100), math.cos(100 * x), math.cos(x / 100)] for x in level.tolist()]
    row = torch.cat([noisy.reshape(6, 6), torch.tensor(waves), seen.reshape(6, 8)], 1)
    hidden = F.silu(F.linear(row, network.trunk[0].weight, network.trunk[0].bias))
    wanted = F.linear(hidden, network.head.weight, network.head.bias).reshape(6, 3, 2)
    found = network(noisy, level, network.prepare(seen))
    assert found.detach().numpy() == pytest.approx(wanted.detach().numpy(), abs=1e-4)


def test_one_level_is_for_all_rows():
    torch.manual_seed(0)
    generator = FlowMatching(ActionMLP((8,), level_dim=4), num_sampling_steps=2)
    generator.network.bind(1, 4, 3, 1)
    noise, seen = torch.randn(5, 4, 1), torch.randn(5, 1, 3)
    with torch.no_grad():
        found = generator.sample(seen, noise)
        first = noise - generator.network(noise, torch.ones(5), generator.network.prepare(seen)) / 2
        wanted = first - generator.network(first, torch.full((5,), 0.5), generator.network.prepare(seen)) / 2
    assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-5)


def test_wrong_options_are_one_line():
    with pytest.raises(ConfigError, match=r"^ActionMLP: level_dim=3 must be even$"):
        ActionMLP(level_dim=3)
    network = ActionMLP(activation="siluu")
    with pytest.raises(ConfigError, match=r"^unknown activation 'siluu'"):
        network.bind(1, 1, 1, 1)
