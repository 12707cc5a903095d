import functools

import pytest
import torch
from torch import nn

from rl_lab.core import ConfigError, Counters, Named, Optimizers


def test_a_wrong_name_lists_the_right_ones():
    components = Named("component", {"actor": 1, "critic": 2})
    assert components["actor"] == 1
    assert components.get("missing") is None
    assert "critic" in components
    assert len(components) == 2
    with pytest.raises(ConfigError, match=r"unknown component 'acter'; did you mean 'actor'\? .choices: actor, critic"):
        components["acter"]


def test_declared_but_unused_is_an_error():
    components = Named("component", {"actor": 1, "extra": 2})
    components["actor"]
    with pytest.raises(ConfigError, match=r"the workflow does not use component 'extra' .used: \['actor'\]"):
        components.reject_unused()
    with pytest.raises(ConfigError, match=r"^nobody reads buffer 'a', 'b' .used: \[\]"):
        Named("buffer", {"b": 1, "a": 2}).reject_unused("nobody reads")
    components["extra"]
    components.reject_unused()


def test_optimizers_come_from_yaml_or_from_the_default():
    parameter = nn.Parameter(torch.zeros(1))
    optimizers = Optimizers({"policy": functools.partial(torch.optim.SGD, lr=0.5)})
    with pytest.raises(ConfigError, match="unknown optimizers entry 'policy'"):
        optimizers.reject_unused()
    assert optimizers.build("policy", [parameter]).param_groups[0]["lr"] == 0.5
    assert isinstance(optimizers.build("value", [parameter], torch.optim.Adam), torch.optim.Adam)
    with pytest.raises(ConfigError, match="unknown optimizers entry 'model'"):
        optimizers.build("model", [parameter])
    with pytest.raises(ConfigError, match="unknown optimizer 'model' .choices: policy, value"):
        optimizers["model"]
    optimizers.reject_unused()
    assert list(optimizers) == ["policy", "value"]
    assert "policy" in optimizers
    assert len(optimizers) == 2


def test_counters_are_counted_apart():
    counters = Counters(env_steps=5, updates=2, episodes=1, cycles=3)
    other = Counters()
    other.set_state(counters.get_state())
    assert other == counters
    assert other.global_step == 5
