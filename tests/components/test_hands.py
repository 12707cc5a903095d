"""Hands among continuous actions: apart and together again, by hand."""

import pytest
import torch

from rl_lab.components.hands import ArmsAndHands, Hands
from rl_lab.core import Box, ConfigError, EnvSpec

CPU = torch.device("cpu")
SPEC = EnvSpec("arm", Box((3,)), Box((5,), low=0.0, high=10.0))


def test_actions_are_taken_apart_and_put_together():
    split = ArmsAndHands(Hands((1, 4), (-1.0, 0.0, 1.0)), SPEC, "RLPD", CPU)
    assert split.arm_spec.action == Box((3,), low=0.0, high=10.0)
    actions = torch.tensor([[1.0, 0.9, 2.0, 3.0, 9.0], [4.0, 5.3, 6.0, 7.0, 2.4]])
    torch.testing.assert_close(split.arms(actions), torch.tensor([[1.0, 2.0, 3.0], [4.0, 6.0, 7.0]]))
    # entries 1 and 4 in [-1, 1]: -0.82, 0.8 -> choices 0 and 2; 0.06, -0.52 -> 1 and 0; numbers in base 3
    assert split.chosen(actions).tolist() == [0 + 2 * 3, 1 + 0 * 3]
    together = split.together(split.arms(actions), split.chosen(actions))
    torch.testing.assert_close(together, torch.tensor([[1.0, 0.0, 2.0, 3.0, 10.0], [4.0, 5.0, 6.0, 7.0, 0.0]]))


def test_every_choice_comes_back():
    hands = Hands((0, 3), (-1.0, 0.0, 1.0))
    split = ArmsAndHands(hands, SPEC, "RLPD", CPU)
    choices = torch.arange(hands.num_choices)
    actions = split.together(torch.full((9, 3), 5.0), choices)
    assert len({tuple(row) for row in actions.tolist()}) == hands.num_choices == 9
    assert torch.equal(split.chosen(actions), choices)


def test_exploring_draws_all_choices_as_often_as_told():
    torch.manual_seed(0)
    split = ArmsAndHands(Hands((0,), epsilon=0.5), SPEC, "RLPD", CPU)
    drawn = split.explored(torch.ones(4000, dtype=torch.int64), 0.5)
    assert 0.2 < float((drawn == 0).float().mean()) < 0.3  # half of the random half
    assert torch.equal(split.explored(torch.ones(9, dtype=torch.int64), 0.0), torch.ones(9, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Hands(()), "algorithm.hands.entries: must be different numbers of entries"),
        (lambda: Hands((1, 1)), "algorithm.hands.entries: must be different"),
        (lambda: Hands((1,), (1.0,)), "algorithm.hands.choices: two or more different values"),
        (lambda: Hands((1,), (-2.0, 1.0)), "algorithm.hands.choices: two or more"),
        (lambda: Hands((1,), epsilon=1.5), "algorithm.hands.epsilon: must be from 0 to 1"),
        (lambda: ArmsAndHands(Hands((5,)), SPEC, "RLPD", CPU), "entries: no entry 5 in actions of 5 numbers"),
        (lambda: ArmsAndHands(Hands((0, 1, 2, 3, 4)), SPEC, "RLPD", CPU), "must leave some for the arms"),
    ],
)
def test_bad_input_is_one_line(make, line):
    with pytest.raises(ConfigError, match=line):
        make()
