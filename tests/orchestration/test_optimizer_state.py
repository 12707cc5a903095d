import pytest
import torch

from rl_lab.core import CheckpointError
from rl_lab.orchestration.optimizer_state import load_optimizer, load_optimizers, optimizer_state
from rl_lab.tracking.state_codec import decode, encode


def stepped(lr):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(2))]
    optimizer = torch.optim.Adam(parameters, lr=lr, fused=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer, parameters


def test_state_survives_the_codec_and_brings_the_next_step_back():
    first, parameters = stepped(torch.tensor(0.1))
    first.param_groups[0]["lr"] = torch.tensor(0.025)
    tensors, structure = encode(optimizer_state(first))
    second, others = stepped(torch.tensor(0.5))
    with torch.no_grad():
        for other, parameter in zip(others, parameters, strict=True):
            other.copy_(parameter)
    load_optimizer(second, decode(structure, tensors))
    assert float(second.param_groups[0]["lr"]) == torch.tensor(0.025)
    assert isinstance(second.param_groups[0]["betas"], tuple)
    first.step()
    second.step()
    for other, parameter in zip(others, parameters, strict=True):
        assert torch.equal(other, parameter)


def test_groups_of_another_size_are_named():
    first, parameters = stepped(0.1)
    grouped = torch.optim.Adam([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.2}])
    message = r"^the checkpoint's optimiser 'policy' has groups of \[2\] parameters, not \[1, 1\]$"
    with pytest.raises(CheckpointError, match=message):
        load_optimizers({"policy": grouped}, {"policy": optimizer_state(first)}, with_options=True)
