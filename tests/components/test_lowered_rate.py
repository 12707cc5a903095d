"""A learning rate that was lowered by a response to an alert stays lowered, whatever a schedule says."""

import pytest
import torch

from rl_lab.components.flat import set_learning_rate
from rl_lab.core import Optimizers
from rl_lab.orchestration.optimizer_state import load_optimizer, optimizer_state


def built(lr):
    optimizers = Optimizers({})
    optimizers.build("a", [torch.zeros(2, requires_grad=True)], lambda params: torch.optim.SGD(params, lr=lr))
    return optimizers


@pytest.mark.parametrize("in_tensor", [False, True])
def test_a_schedule_goes_on_below(in_tensor):
    optimizers = built(0.8)
    set_learning_rate(optimizers["a"], 0.8, in_tensor=in_tensor)
    (before, after) = optimizers.lower_rates(0.5)["a"]
    assert (before, after) == pytest.approx((0.8, 0.4))
    set_learning_rate(optimizers["a"], 0.6, in_tensor=in_tensor)
    assert float(optimizers["a"].param_groups[0]["lr"]) == pytest.approx(0.3)
    optimizers.lower_rates(0.1)
    assert float(optimizers["a"].param_groups[0]["lr"]) == pytest.approx(0.03)
    again = built(0.8)
    load_optimizer(again["a"], optimizer_state(optimizers["a"]))
    set_learning_rate(again["a"], 0.6, in_tensor=in_tensor)
    assert float(again["a"].param_groups[0]["lr"]) == pytest.approx(0.6 * 0.05)


def test_one_that_was_never_lowered_is_as_it_was():
    optimizers = built(0.8)
    set_learning_rate(optimizers["a"], 0.1)
    assert optimizers["a"].param_groups[0]["lr"] == 0.1
    assert "rate_share" not in optimizers["a"].param_groups[0]
