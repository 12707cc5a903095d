"""Learner: what it does in a compiled graph is what torch's own optimisers do."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rl_lab.components.learner import AdamSlot, Learner, adam_step, frozen_copy, polyak, trained
from rl_lab.core import Optimizers


def make_learner(module, factory=None, **options):
    optimizers = Optimizers({} if factory is None else {"net": factory})
    context = SimpleNamespace(optimizers=optimizers, device=torch.device("cpu"))
    return Learner(context, "net", module.parameters(), **options)


@pytest.mark.parametrize(
    "factory",
    [
        partial(torch.optim.Adam, lr=0.01),
        partial(torch.optim.Adam, lr=0.01, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-5),
        partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    ],
)
def test_the_written_out_step_is_that_of_torch(factory):
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(5, 3)), None
    theirs = nn.Parameter(ours.detach().clone())
    optimizer = factory([theirs])
    group = dict(optimizer.param_groups[0])
    slot = AdamSlot(ours.data, torch.zeros(5, 3), torch.zeros(5, 3), torch.zeros(()))
    for _ in range(5):
        gradient = torch.randn(5, 3)
        theirs.grad = gradient.clone()
        optimizer.step()
        adam_step([slot], [gradient], group)
    torch.testing.assert_close(ours.data, theirs.data)


def test_descending_is_a_step_of_the_optimiser_on_the_clipped_gradient():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 2), torch.randn(8, 4)
    other = copy.deepcopy(net)
    learner = make_learner(net, max_grad_norm=0.5)
    optimizer = torch.optim.Adam(other.parameters(), lr=3e-4)
    for _ in range(3):
        norm = learner.descend(net(x).square().mean())
        optimizer.zero_grad()
        other(x).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        optimizer.step()
        assert float(norm) == pytest.approx(float(expected), rel=1e-5)
    torch.testing.assert_close(net.weight, other.weight)


def test_loaded_state_is_what_a_compiled_step_goes_on_from():
    net = nn.Linear(2, 1)
    learner = make_learner(net)
    learner.descend(net(torch.ones(1, 2)).sum())
    learner.optimizer.load_state_dict(copy.deepcopy(learner.optimizer.state_dict()))
    for parameter, slot in zip(net.parameters(), learner._slots, strict=True):
        assert slot.mean is learner.optimizer.state[parameter]["exp_avg"]
        assert slot.step is learner.optimizer.state[parameter]["step"]


def test_other_optimisers_descend_too():
    net = nn.Linear(2, 1)
    before = net.weight.detach().clone()
    make_learner(net, partial(torch.optim.SGD, lr=0.5)).descend(net(torch.ones(1, 2)).sum())
    torch.testing.assert_close(net.weight.detach(), before - 0.5)


def test_a_target_follows_its_source():
    source = nn.Linear(2, 2)
    target = frozen_copy(source)
    with torch.no_grad():
        source.weight.add_(1.0)
    polyak(target, source, 0.25)
    torch.testing.assert_close(source.weight - target.weight, torch.full((2, 2), 0.75))
    assert not any(p.requires_grad for p in target.parameters())
    polyak(nn.Identity(), nn.Identity(), 0.5)  # nothing to move


def test_what_is_absent_has_no_parameters():
    assert len(list(trained(None, nn.Linear(1, 1), None))) == 2
