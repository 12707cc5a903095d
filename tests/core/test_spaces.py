"""Spaces: how many numbers they are to a network, and what an action may not be."""

import pytest

from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, EnvSpec, MultiDiscrete, flat_dim, num_choices

MIXED = {"gear": Discrete(3), "pedals": Box((2, 2)), "arms": MultiDiscrete((2, 4))}


def test_a_dict_of_actions_is_the_sum_of_its_parts():
    assert flat_dim(MIXED) == 3 + 4 + 6
    assert num_choices(MIXED) == 3 + 6
    assert (num_choices(Box((2,))), num_choices(Discrete(4)), num_choices(MIXED["arms"])) == (0, 4, 6)
    assert EnvSpec("x", Box((1,)), MIXED).action is MIXED


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"arm": {"turn": Box((1,))}}, "'x': actions are a Box, .* or a dict of them, but 'arm' is a dict"),
        ("left", "'x': actions are a Box, .* but '' is a str"),
        ({ACTION_MASK: Discrete(2)}, "'x': a dict of actions needs names other than 'action_mask'"),
        ({}, "'x': a dict of actions needs names"),
    ],
)
def test_what_is_no_action_is_told_in_one_line(action, message):
    with pytest.raises(ConfigError, match=message):
        EnvSpec("x", Box((1,)), action)
