"""Ensembles: member by member they are plain networks."""

import pytest
import torch
from torch import nn

from rl_lab.components.action_values import ActionValues, ValueRange, chosen, random_members
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.core import Box, ConfigError, Discrete

SPACE = Box((2,), low=-1.0, high=1.0)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_member_is_a_network_of_its_own(layer_norm):
    torch.manual_seed(0)
    ensemble = EnsembleMLP(5, (7, 3), num_members=3, layer_norm=layer_norm)
    x = torch.randn(4, 5)
    found = ensemble(x)
    assert found.shape == (3, 4, 3)
    for member in range(3):
        y = x
        for layer in ensemble.layers:
            if isinstance(layer, nn.ReLU):
                y = y.clamp_min(0.0)
            elif layer_norm and layer.weight.shape[1] == 1:
                y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
                y = y * layer.weight[member, 0] + layer.bias[member, 0]
            else:
                y = y @ layer.weight[member] + layer.bias[member, 0]
        torch.testing.assert_close(found[member], y)


def test_members_begin_differently():
    first = EnsembleMLP(5, (7,), num_members=2).layers[0].weight
    assert not torch.allclose(first[0], first[1])


def test_dropout_drops_in_training_only():
    net = EnsembleMLP(5, (64,), num_members=2, dropout=0.5)
    x = torch.randn(4, 5)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_values_of_choices_are_gathered():
    critic = ActionValues(EnsembleMLP(3, (8,)), Discrete(4))
    features, actions = torch.randn(6, 3), torch.tensor([0, 3, 2, 1, 1, 0])
    every = critic(features, None)
    assert every.shape == (2, 6, 4)
    taken = critic(features, actions)
    for row, action in enumerate(actions.tolist()):
        assert torch.equal(taken[:, row], every[:, row, action])
    with_atoms = torch.randn(2, 6, 4, 5)
    assert torch.equal(chosen(with_atoms, actions)[1, 3], with_atoms[1, 3, 1])


def test_the_lowest_distribution_is_that_of_the_critic_with_the_lowest_mean():
    critic = ActionValues(EnsembleMLP(5, (8,)), SPACE, ValueRange(-1.0, 1.0, 3))
    outputs = torch.tensor([[[0.0, 0.0, 9.0], [9.0, 0.0, 0.0]], [[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]]])  # [2, B=2, 3]
    assert torch.equal(critic.lowest(outputs), torch.tensor([[9.0, 0.0, 0.0], [9.0, 0.0, 0.0]]))


def test_targets_of_distributions_keep_their_mean():
    critic = ActionValues(EnsembleMLP(5, (8,)), SPACE, ValueRange(-10.0, 10.0, 41))
    outputs, rewards = torch.randn(6, 41), torch.randn(6)
    target = critic.targets(outputs, rewards, torch.full((6,), 0.5), torch.zeros(6))
    support = torch.linspace(-10.0, 10.0, 41)
    mean = (outputs.softmax(-1) * support).sum(-1)
    torch.testing.assert_close((target * support).sum(-1), rewards + 0.5 * mean, atol=1e-4, rtol=1e-4)


def test_random_members_are_drawn_without_replacement():
    drawn = random_members(torch.arange(5.0), 5)
    assert sorted(drawn.tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_bad_critics_are_refused():
    with pytest.raises(ConfigError, match=r"components\.critic: needs an EnsembleMLP"):
        ActionValues(MLP(3), SPACE)
    with pytest.raises(ConfigError, match=r"algorithm\.value_range: 1 atoms"):
        ValueRange(0.0, 1.0, 1)
    with pytest.raises(ConfigError, match="low < high"):
        ValueRange(1.0, 1.0)
