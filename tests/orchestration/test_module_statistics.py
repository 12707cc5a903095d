"""Sizes of weights and gradients, held against sums written out."""

import pytest
import torch
from torch import nn

from rl_lab.components.flat import FlatParameters
from rl_lab.orchestration.module_statistics import ModuleStatistics


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([3.0, 4.0]))
        self.first, self.second = nn.Linear(1, 2), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1.0], [2.0]]))
            self.first.bias.copy_(torch.tensor([-2.0, 0.0]))


def numbers(statistics):
    return {key: value.item() for key, value in statistics.measure().items()}


def test_weights_changes_and_gradients_of_each_module():
    module = Two()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    statistics = ModuleStatistics(module, {"all": optimizer})
    loss = (module.first.weight * torch.tensor([[6.0], [8.0]])).sum() + module.first.bias.sum() * 0.0
    loss.backward()
    optimizer.step()
    found = numbers(statistics)
    assert found["workflow/weight_norm"] == 5.0  # 3, 4
    assert found["workflow/weight_max"] == 4.0
    assert found["first/weight_norm"] == pytest.approx((0.4**2 + 1.2**2 + 2.0**2) ** 0.5)
    assert found["first/weight_max"] == 2.0
    assert found["first/grad_norm"] == pytest.approx(10.0)
    assert found["first/change_norm"] == pytest.approx(1.0)
    assert found["second/change_norm"] == 0.0
    assert "second/grad_norm" not in found
    assert "first/grad_norm" not in numbers(statistics)  # nobody has written another since
    module.first.weight.grad.mul_(2.0)
    assert numbers(statistics)["first/grad_norm"] == pytest.approx(20.0)


def test_gradients_of_parameters_that_are_parts_of_one_tensor():
    module = Two()
    flat = FlatParameters([*module.first.parameters(), *module.second.parameters()])
    optimizer = torch.optim.SGD([flat.tensor], lr=0.1)
    flat.tensor.grad = torch.zeros(5)
    statistics = ModuleStatistics(module, {"all": optimizer})
    assert "first/grad_norm" not in numbers(statistics)  # it was there before
    flat.tensor.grad.numpy()[:] = [3.0, 0.0, 0.0, 4.0, 7.0]  # torch does not see it written
    found = numbers(statistics)
    assert (found["first/grad_norm"], found["second/grad_norm"]) == (5.0, 7.0)
    assert "workflow/grad_norm" not in found
