"""Named parts of an observation: their numbers, their place in a vector environment and what is said of wrong ones."""

import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.wrappers.wrapping import build_wrappers
from tests.environments.ramps import Film, Ramp

PARTS = {"observation_parts": {"parts": {"state": None, "second": [1], "turned": [1, 0]}}}


def wrap(env, entry):
    (wrapper,) = build_wrappers([entry])
    return wrapper(env)


def test_parts_are_entries_of_the_observation():
    env = wrap(Ramp(), PARTS)
    obs, _ = env.reset(seed=0)
    for expected in ([0.0, 0.0], [1.0, 10.0]):
        assert {name: part.tolist() for name, part in obs.items()} == {
            "state": expected, "second": expected[1:], "turned": expected[::-1]
        }  # fmt: skip
        assert env.observation_space.contains(obs)
        obs = env.step(np.zeros(2, np.float32))[0]


def test_a_vector_environment_shows_them_and_goes_on_exactly():
    env = GymnasiumEnv("CartPole-v1", 3, wrappers=[{"observation_parts": {"parts": {"all": None, "places": [0, 2]}}}])
    plain = GymnasiumEnv("CartPole-v1", 3)
    assert {name: leaf.shape for name, leaf in env.spec.observation.items()} == {"all": (4,), "places": (2,)}
    obs, seen = env.reset(5), plain.reset(5)
    for _ in range(30):
        assert torch.equal(obs["all"], seen)
        assert torch.equal(obs["places"], seen[:, [0, 2]])
        obs, seen = (one.step(torch.ones(3, dtype=torch.int64)).observations for one in (env, plain))
    state, after = env.get_state(), env.step(torch.zeros(3, dtype=torch.int64))
    env.set_state(state)
    again = env.step(torch.zeros(3, dtype=torch.int64))
    assert torch.equal(again.final_observations["places"], after.final_observations["places"])


@pytest.mark.parametrize(
    ("env", "entries", "message"),
    [
        (Film, [0], r"observation_parts needs a list of numbers, not Box\("),
        (Ramp, [2], r"observation_parts: 'x' must be a list of entries of 0 to 1, or null, not \[2\]$"),
        (Ramp, [], r"'x' must be a list of entries of 0 to 1, or null, not \[\]$"),
        (Ramp, "all", r"'x' must be a list of entries of 0 to 1, or null, not 'all'$"),
        (Ramp, [True], r"'x' must be a list of entries"),
    ],
)
def test_wrong_parts_are_one_line(env, entries, message):
    with pytest.raises(ConfigError, match=message):
        wrap(env(), {"observation_parts": {"parts": {"x": entries}}})
