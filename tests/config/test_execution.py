"""Which optimisers a captured update may have."""

from functools import partial

import pytest
import torch

from rl_lab.config.execution import reject_uncapturable
from rl_lab.core import ConfigError, Optimizers
from rl_lab.orchestration.static_step import StaticSteps


class OnDevice(torch.optim.Optimizer):
    """A user's optimiser that counts its steps where the parameters are."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"step": torch.zeros((), device=parameter.device)}


class OnHost(OnDevice):
    """A user's optimiser that counts them as a number."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.state[self.param_groups[0]["params"][0]]["step"] = 0


def built(**kinds):
    """Return optimisers by name, of parameters that are not in the host's memory."""
    optimizers = Optimizers({name: partial(kind, lr=1e-3) for name, kind in kinds.items()})
    for name in kinds:
        optimizers.build(name, [torch.nn.Parameter(torch.zeros(2, device="meta"))])
    return optimizers


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD, OnDevice])
@pytest.mark.parametrize("name", ["auto", "captured"])
def test_optimizers_that_can_be_captured_are(kind, name):
    static = StaticSteps("captured")
    reject_uncapturable({"experiment": {"compile": name}}, static, built(actor=torch.optim.Adam, critic=kind))
    assert static.execution == "captured"


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.Adafactor, OnHost])
def test_others_make_auto_eager_and_captured_an_error(kind):
    optimizers, static = built(actor=torch.optim.Adam, critic=kind), StaticSteps("captured")
    reject_uncapturable({"experiment": {"compile": "auto"}}, static, optimizers)
    assert static.execution == "eager"
    with pytest.raises(ConfigError) as error:
        reject_uncapturable({"experiment": {"compile": "captured"}}, StaticSteps("captured"), optimizers)
    assert str(error.value).startswith("experiment.compile: captured needs")
    assert f"optimizers.critic is {kind.__name__} (choices: auto, eager)" in str(error.value)


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_other_ways_take_any(way):
    static = StaticSteps(way)
    reject_uncapturable({"experiment": {"compile": way}}, static, built(critic=torch.optim.Adagrad))
    assert static.execution == way
