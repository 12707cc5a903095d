"""Weights from one workflow to another: what fits is taken to the bit, what does not is named."""

import pytest
import torch
from torch import nn

from rl_lab.core import CheckpointError, ConfigError
from rl_lab.orchestration.hand_off import load_parts
from tests.workflows.off_policy import parts_of


class Parts(nn.Module):
    def __init__(self, width=3, **others):
        super().__init__()
        self.model = nn.Linear(2, width)
        for name, module in others.items():
            self.add_module(name, module)


def test_only_the_named_part_is_taken():
    source, target = Parts(actor=nn.Linear(3, 1)), Parts(planner=nn.Linear(3, 1))
    kept = target.planner.weight.clone()
    load_parts(target, source.state_dict(), ["model"])
    assert torch.equal(target.model.weight, source.model.weight)
    assert torch.equal(target.planner.weight, kept)


def test_what_does_not_fit_is_named_with_its_shapes():
    target = Parts()
    before = target.model.weight.clone()
    with pytest.raises(CheckpointError, match=r"model.weight is \[4, 2\] there and \[3, 2\] here; model.bias is \[4\]"):
        load_parts(target, Parts(width=4).state_dict(), ["model"])
    with pytest.raises(CheckpointError, match="model.weight is not in it"):
        load_parts(target, {"other.weight": before}, ["model"])
    with pytest.raises(ConfigError, match=r"training.resume_parts 'critic' \(choices: model\)"):
        load_parts(target, Parts().state_dict(), ["critic"])
    assert torch.equal(target.model.weight, before)


@pytest.mark.parametrize(
    ("source", "target"),
    [("dreamer_cartpole", "planet_dreamer_cartpole"), ("planet_dreamer_cartpole", "dreamer_cartpole")],
)
def test_dreamer_and_planet_share_one_world_model(source, target):
    first, second = (parts_of([f"+experiment={name}"]) for name in (source, target))
    load_parts(second.workflow, first.workflow.state_dict(), ["world_model"])
    weights = first.workflow.world_model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in second.workflow.world_model.state_dict().items())
    for parts in (first, second):
        parts.env.close()
