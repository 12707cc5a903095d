"""Memories: a sequence is the same as its steps, nothing crosses an episode's start, gradients flow through time."""

import pytest
import torch
from torch import nn

from rl_lab.components.recurrent import GRU, LSTM
from rl_lab.components.transformer import Transformer
from rl_lab.core import ConfigError, tree_map

T, N, D = 13, 4, 3
MAKERS = {
    "gru": lambda: GRU(D, 8),
    "lstm": lambda: LSTM(D, 8),
    "transformer": lambda: Transformer(D, 8, context=5, num_layers=2, num_heads=2),
}


@pytest.fixture(params=MAKERS)
def memory(request):
    torch.manual_seed(0)
    return MAKERS[request.param]()


def data(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, N, D, generator=generator), torch.rand(T, N, generator=generator) < 0.25


def steps(memory, inputs, carry, is_first):
    features = []
    for x, first in zip(inputs, is_first, strict=True):
        y, carry = memory(x, carry, first)
        features.append(y)
    return torch.stack(features), carry


def test_sequence_equals_steps(memory):
    inputs, is_first = data()
    whole, last = memory(inputs, memory.initial_carry(N), is_first)
    single, last_single = steps(memory, inputs, memory.initial_carry(N), is_first)
    assert whole.shape == (T, N, memory.output_dim)
    torch.testing.assert_close(whole, single)
    torch.testing.assert_close(last, last_single)


def test_a_sequence_can_start_from_any_stored_carry(memory):
    inputs, is_first = data()
    whole, _ = memory(inputs, memory.initial_carry(N), is_first)
    _, carry = steps(memory, inputs[:6], memory.initial_carry(N), is_first[:6])
    rest, _ = memory(inputs[6:], carry, is_first[6:])
    torch.testing.assert_close(rest, whole[6:])


def test_an_episode_start_forgets_everything_before(memory):
    inputs, _ = data()
    is_first = torch.zeros(T, N, dtype=torch.bool)
    is_first[0], is_first[7, 2] = True, True
    whole, _ = memory(inputs, tree_map(torch.ones_like, memory.initial_carry(N)), is_first)
    fresh, _ = memory(inputs[7:], memory.initial_carry(N), is_first[7:])
    torch.testing.assert_close(whole[7:, 2], fresh[:, 2])
    changed = inputs.clone()
    changed[:7, 2] += 10.0
    again, _ = memory(changed, memory.initial_carry(N), is_first)
    torch.testing.assert_close(again[7:, 2], whole[7:, 2])
    assert not torch.allclose(again[:7, 2], whole[:7, 2])


def test_the_past_of_an_episode_is_seen_and_the_future_is_not(memory):
    inputs, _ = data()
    is_first = torch.zeros(T, N, dtype=torch.bool)
    before, _ = memory(inputs, memory.initial_carry(N), is_first)
    changed = inputs.clone()
    changed[5] += 1.0
    after, _ = memory(changed, memory.initial_carry(N), is_first)
    torch.testing.assert_close(after[:5], before[:5])
    assert not torch.allclose(after[6], before[6])


def test_no_gradient_crosses_an_episode_start(memory):
    inputs, _ = data()
    inputs.requires_grad_()
    is_first = torch.zeros(T, N, dtype=torch.bool)
    is_first[4] = True
    features, _ = memory(inputs, memory.initial_carry(N), is_first)
    features[6].square().sum().backward()
    assert inputs.grad[:4].abs().sum() == 0
    assert (inputs.grad[4:7].abs().sum((1, 2)) > 0).all()


def test_carries_are_trees_with_one_row_per_environment(memory):
    shapes = []
    tree_map(lambda leaf: shapes.append(leaf.shape[0]), memory.initial_carry(6))
    assert set(shapes) == {6}


def test_gru_is_torchs_gru_between_resets():
    torch.manual_seed(0)
    ours, theirs = GRU(D, 8), nn.GRU(D, 8)
    theirs.load_state_dict({f"{name}_l0": value for name, value in ours.cell.state_dict().items()})
    inputs, _ = data()
    features, _ = ours(inputs, ours.initial_carry(N), torch.zeros(T, N, dtype=torch.bool))
    torch.testing.assert_close(features, theirs(inputs)[0])


def test_transformer_sees_exactly_its_context():
    torch.manual_seed(0)
    memory, (inputs, _) = MAKERS["transformer"](), data()
    is_first = torch.zeros(T, N, dtype=torch.bool)
    before, _ = memory(inputs, memory.initial_carry(N), is_first)
    changed = inputs.clone()
    changed[2] += 1.0
    after, _ = memory(changed, memory.initial_carry(N), is_first)
    differs = [not torch.allclose(a, b, atol=1e-6) for a, b in zip(after, before, strict=True)]
    assert differs == [2 <= t < 7 for t in range(T)]


def test_transformer_names_what_does_not_fit():
    with pytest.raises(
        ConfigError, match="dividing hidden_dim, not context 5, num_layers 1, hidden_dim 8, num_heads 3"
    ):
        Transformer(D, 8, context=5, num_heads=3)
