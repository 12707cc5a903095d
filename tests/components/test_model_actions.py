"""Actions between model and environment: every kind of part by hand, alone and mixed, and there and back again."""

import math

import pytest
import torch

from rl_lab.components.model_actions import ModelActions
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, EnvSpec, MultiDiscrete

CPU = torch.device("cpu")
PARTS = {
    "gear": Discrete(3),
    "pedals": Box((2, 1), low=0.0, high=10.0),
    "arms": MultiDiscrete((2, 3)),
    "steer": Box((1,), low=-1.0, high=1.0),
}


def spec(action, **observation):
    return EnvSpec("x", {"seen": Box((1,)), **observation}, action)


def test_numbers_come_first_and_choices_follow_in_the_order_of_the_parts():
    code = ModelActions(spec(PARTS), "Test")
    assert (code.dim, code.num_numbers, code.num_choices, code.nvec) == (11, 3, 8, (3, 2, 3))
    actions = {
        "arms": torch.tensor([[1, 0], [0, 2]]),
        "gear": torch.tensor([2, 0]),
        "steer": torch.tensor([[-0.5], [1.0]]),
        "pedals": torch.tensor([[[0.0], [10.0]], [[5.0], [7.5]]]),
    }
    read = code.read(actions)
    assert read.tolist() == [
        [-1.0, 1.0, -0.5, 0, 0, 1, 0, 1, 1, 0, 0],
        [0.0, 0.5, 1.0, 1, 0, 0, 1, 0, 0, 0, 1],
    ]
    back = code.to_environment(read)
    assert back.keys() == actions.keys()
    for name, part in actions.items():
        assert torch.equal(back[name], part), name
    read[:, 1] = 3.0  # beyond the bounds
    assert code.to_environment(read)["pedals"][:, 1].tolist() == [[10.0], [10.0]]


def test_random_actions_are_uniform_over_what_is_allowed():
    code, mask = ModelActions(spec(PARTS), "Test"), torch.ones(6000, 8, dtype=torch.bool)
    mask[:, 1] = mask[:, 3] = False
    actions = code.to_environment(code.random(6000, CPU, mask))
    assert set(actions["gear"].tolist()) == {0, 2}
    assert set(actions["arms"][:, 0].tolist()) == {1}
    shares = actions["arms"][:, 1].bincount(minlength=3) / 6000
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), rtol=0, atol=4 * 0.5 / math.sqrt(6000))
    assert float(actions["pedals"].var()) == pytest.approx(100 / 12, rel=0.05)
    numbers, choices = code.split(code.random(100, CPU))
    assert (numbers.shape, choices.shape) == ((100, 3), (100, 8))


def test_noise_is_for_numbers_and_chance_for_choices():
    code = ModelActions(spec(PARTS), "Test")
    actions = code.random(5000, CPU) * torch.tensor([0.0] * 3 + [1.0] * 8)
    difference = code.disturbed(actions, 0.2, 0.0, None) - actions
    assert not difference[:, 3:].any()
    torch.testing.assert_close(difference[:, :3].std(0), torch.full((3,), 0.2), rtol=0.05, atol=0)
    numbers, choices = code.split(code.disturbed(actions, 0.0, 0.3, None) - actions)
    assert not numbers.any()
    share = float(choices[:, :3].any(-1).float().mean())  # a gear of three: a random one is the same in a third
    assert share == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (spec({"gear": Discrete(2), "pedals": Box((2,))}), "Test needs finite action bounds, those of 'x: pedals' are"),
        (spec({"gear": Discrete(2), "pedals": Box((0,), low=-1.0, high=1.0)}), "Test needs actions, those of 'x: ped"),
        (
            spec(PARTS, **{ACTION_MASK: Box((11,), torch.bool)}),
            "environment: action_mask of 'x' has 11 entries, but its actions have 8 choices",
        ),
        (
            spec(PARTS["steer"], **{ACTION_MASK: Box((1,), torch.bool)}),
            "action_mask of 'x' has 1 entries, but its actions have 0 choices",
        ),
    ],
)
def test_what_does_not_fit_is_named(made, message):
    with pytest.raises(ConfigError, match=message):
        ModelActions(made, "Test")
