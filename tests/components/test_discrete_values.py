"""Values of discrete actions: dueling heads, beliefs, and how actions follow from them."""

import pytest
import torch

from rl_lab.components.action_values import ValueRange
from rl_lab.components.discrete_values import (
    CategoricalReturns,
    DiscreteValues,
    QuantileReturns,
    Returns,
    chosen,
    make_returns,
    random_choices,
)
from rl_lab.components.mlp import MLP
from rl_lab.core import ConfigError

torch.set_num_threads(1)
RETURNS = {
    "none": Returns,
    "categorical": lambda: CategoricalReturns(ValueRange(-3.0, 3.0, 7)),
    "quantile": lambda: QuantileReturns(5),
}


def make(kind="none", **options):
    torch.manual_seed(0)
    return DiscreteValues(MLP(3, (16,), "relu"), 4, RETURNS[kind](), **options)


@pytest.mark.parametrize("has_stream", [False, True])
@pytest.mark.parametrize("kind", RETURNS)
def test_dueling_outputs_are_value_plus_centred_advantage(kind, has_stream):
    critic = make(kind, is_dueling=True, value_trunk=MLP(3, (8,), "relu") if has_stream else None)
    x, size = torch.randn(6, 3), max(1, critic.returns.num_outputs)
    raw = critic.head(critic.trunk(x)).detach()
    value = critic.value_head(critic.value_trunk(x)).detach() if has_stream else raw[:, 4 * size :]
    outputs = critic(x).reshape(6, 4, size).detach()
    for row in range(6):
        for atom in range(size):
            advantages = [float(raw[row, action * size + atom]) for action in range(4)]
            expected = [float(value[row, atom]) + a - sum(advantages) / 4 for a in advantages]
            assert outputs[row, :, atom].tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(outputs.mean(1), value)  # the identity that gives the streams their names


def test_values_are_means():
    logits = torch.randn(2, 4, 7)
    expected = (logits.softmax(-1) * torch.tensor([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0])).sum(-1)
    torch.testing.assert_close(make("categorical").values(logits), expected)
    quantiles = torch.randn(2, 4, 5)
    torch.testing.assert_close(make("quantile").values(quantiles), quantiles.sum(-1) / 5)


def test_chosen_outputs():
    outputs, actions = torch.randn(3, 4), torch.tensor([2, 0, 3])
    assert chosen(outputs, actions).tolist() == [float(outputs[row, a]) for row, a in enumerate(actions)]
    outputs = torch.randn(3, 4, 5)
    assert torch.equal(chosen(outputs, actions), torch.stack([outputs[row, a] for row, a in enumerate(actions)]))


@pytest.mark.parametrize("kind", RETURNS)
@pytest.mark.parametrize("is_dueling", [False, True])
def test_few_rows_act_as_many_do(kind, is_dueling):
    critic, x = make(kind, is_dueling=is_dueling), torch.randn(20, 3)
    free = torch.ones(20, 4, dtype=torch.bool)  # a mask takes the way of many rows
    with torch.inference_mode():
        for epsilon in (0.0, 0.5):
            torch.manual_seed(1)
            few = critic.behave(x, None, epsilon, explore=True)
            torch.manual_seed(1)
            many = critic.behave(x, free, epsilon, explore=True)
            assert torch.equal(few, many)
            assert few.dtype == torch.int64
        assert torch.equal(critic.behave(x, None, 0.0, explore=True), critic.values(critic(x)).argmax(-1))


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("rows", [8, 4000])
def test_random_actions_are_as_frequent_and_as_even_as_they_should_be(rows, is_masked):
    torch.manual_seed(0)
    critic, x = make(), torch.zeros(rows, 3)
    mask = torch.tensor([[True, False, True, True]]).expand(rows, 4) if is_masked else None
    with torch.inference_mode():
        best = int(critic.behave(x[:1], None if mask is None else mask[:1], 0.0, explore=True))
        actions = torch.cat([critic.behave(x, mask, 0.3, explore=True) for _ in range(16_000 // rows)])
    counts = actions.bincount(minlength=4).float() / len(actions)
    choices = [0, 2, 3] if is_masked else [0, 1, 2, 3]
    expected = [0.3 / len(choices) * (a in choices) + 0.7 * (a == best) for a in range(4)]
    assert counts.tolist() == pytest.approx(expected, abs=0.02)


def test_random_choices_cover_all_allowed_ones_evenly():
    draws = torch.tensor([0.0, 0.26, 0.51, 0.99, 1.0])
    assert random_choices(draws, 4, None).tolist() == [0, 1, 2, 3, 3]
    mask = torch.tensor([[False, True, False, True]]).expand(5, 4)
    assert random_choices(draws, 4, mask).tolist() == [1, 1, 3, 3, 3]


def test_noise_is_there_to_explore_and_only_then():
    critic, x = make(is_noisy=True, is_dueling=True, value_trunk=MLP(3, (8,), "relu")), torch.randn(500, 3) * 0.01
    means = critic.eval()(x).argmax(-1)
    critic.train()
    with torch.inference_mode():
        greedy = [critic.behave(x, None, 0.0, explore=False) for _ in range(2)]
        noisy = [critic.behave(x, None, 0.0, explore=True) for _ in range(2)]
    assert torch.equal(greedy[0], means)
    assert torch.equal(greedy[1], means)
    assert not torch.equal(noisy[0], noisy[1])
    assert critic.training


def test_options_that_do_not_go_together():
    with pytest.raises(ConfigError, match=r"algorithm\.value_range"):
        make_returns("categorical", None, 5, "huber")
    with pytest.raises(ConfigError, match=r"algorithm\.value_range"):
        make_returns("none", ValueRange(0.0, 1.0), 5, "huber")
    with pytest.raises(ConfigError, match=r"components\.value"):
        make(value_trunk=MLP(3, (8,)))
