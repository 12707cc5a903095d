"""Learner: what it does in a compiled graph is what torch's own optimisers do."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rl_lab.components.learner import AdamSlot, Learner, adam_step, descend_as_one, frozen_copy, polyak, trained
from rl_lab.core import Optimizers
from rl_lab.core.ranks import ALONE
from rl_lab.core.seeds import Seeds
from rl_lab.distributed.launch import free_port
from rl_lab.distributed.process_group import process_group
from rl_lab.orchestration.optimizer_state import load_optimizer, optimizer_state
from rl_lab.orchestration.static_step import StaticSteps


def make_learner(module, factory=None, **options):
    optimizers = Optimizers({} if factory is None else {"net": factory})
    context = SimpleNamespace(optimizers=optimizers, device=torch.device("cpu"), seeds=Seeds(), ranks=ALONE)
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
    learner = make_learner(net, partial(torch.optim.SGD, lr=0.5))
    learner.descend(net(torch.ones(1, 2)).sum())
    learner.set_rate(0.25)
    learner.descend(net(torch.ones(1, 2)).sum())
    torch.testing.assert_close(net.weight.detach(), before - 0.75)


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


@pytest.mark.parametrize("longest", [0.5, 1000.0, None])
def test_learners_that_descend_as_one_share_the_length_of_their_gradient(longest):
    torch.manual_seed(0)
    nets = [nn.Linear(3, 4), nn.Linear(4, 1)]
    learners = [
        make_learner(net, partial(torch.optim.SGD, lr=rate)) for net, rate in zip(nets, (0.1, 0.01), strict=True)
    ]
    before = [[parameter.detach().double().numpy() for parameter in net.parameters()] for net in copy.deepcopy(nets)]
    loss = nets[1](nets[0](torch.randn(5, 3)).tanh()).square().sum()
    parts = [torch.autograd.grad(loss, list(net.parameters()), retain_graph=True) for net in nets]
    length = sum(float(part.double().square().sum()) for each in parts for part in each) ** 0.5
    assert length > 0.5
    assert float(descend_as_one(loss, learners, longest).detach()) == pytest.approx(length, rel=1e-5)
    share = 1.0 if longest is None else min(1.0, longest / length)
    for net, old, gradients, rate in zip(nets, before, parts, (0.1, 0.01), strict=True):
        for new, was, gradient in zip(net.parameters(), old, gradients, strict=True):
            expected = torch.tensor(was) - rate * share * gradient.double()
            torch.testing.assert_close(new.detach().double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_traced", [False, True])
def test_weight_decay_leaves_alone_what_it_shall_and_all_follow_the_rate(is_traced):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    other, factory = copy.deepcopy(net), partial(torch.optim.AdamW, lr=0.1, weight_decay=0.2)
    learner = make_learner(net, factory, undecayed=[net[0].bias, *net[1].parameters(), net[2].bias])
    matrices, rest = [other[0].weight, other[2].weight], [other[0].bias, *other[1].parameters(), other[2].bias]
    optimizer = factory([{"params": matrices}, {"params": rest, "weight_decay": 0.0}])
    assert [tuple(parameter.shape) for parameter in learner.parameters[:2]] == [(3, 4), (2, 3)]
    torch.compiler.reset()
    apply = torch.compile(learner.apply, backend="eager", fullgraph=True) if is_traced else learner.apply
    for rate in (0.1, 0.05):
        gradients = [torch.randn_like(parameter) for parameter in (*matrices, *rest)]
        learner.set_rate(rate)
        apply(tuple(gradients))
        for parameter, gradient in zip((*matrices, *rest), gradients, strict=True):
            parameter.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    for mine, own in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, own)


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize(
    "factory", [partial(torch.optim.Adam, lr=0.1, fused=True), partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1)]
)
def test_a_changing_rate_is_followed_without_another_compilation(factory, is_traced):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    other = copy.deepcopy(net)
    learner, optimizer = make_learner(net, factory), factory(other.parameters())
    torch.compiler.reset()
    apply = torch.compile(learner.apply, backend="eager", fullgraph=True) if is_traced else learner.apply
    assert learner.initial_rate == 0.1
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rate in (0.1, 0.05, 0.0, 0.2):
            other.weight.grad, other.bias.grad = torch.randn(2, 4), torch.randn(2)
            learner.set_rate(rate)
            apply((other.weight.grad.clone(), other.bias.grad.clone()))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            torch.testing.assert_close(net.weight, other.weight)


def test_a_changing_rate_is_part_of_the_optimisers_state():
    learners = [make_learner(nn.Linear(2, 1)) for _ in range(2)]
    learners[0].set_rate(0.25)
    load_optimizer(learners[1].optimizer, optimizer_state(learners[0].optimizer))
    assert float(learners[1].optimizer.param_groups[0]["lr"]) == 0.25
    learners[1].set_rate(0.5)  # their own from here on
    assert [float(each.optimizer.param_groups[0]["lr"]) for each in learners] == [0.25, 0.5]
    assert learners[1].initial_rate == 3e-4


@pytest.fixture
def group(monkeypatch):
    """Be the only rank of a process group with nccl."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", **address}.items():
        monkeypatch.setenv(name, value)
    with process_group(torch.device("cuda", 0)) as ranks:
        yield ranks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_reduces_its_gradient_by_nccl(group):
    follow_the_rate(group)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_follows_the_rate():
    follow_the_rate(ALONE)


def follow_the_rate(ranks):
    torch.manual_seed(0)
    net, x = nn.Linear(4, 2).cuda(), torch.randn(8, 4, device="cuda")
    other, factory = copy.deepcopy(net), partial(torch.optim.Adam, lr=0.1, fused=True)
    given = {"optimizers": Optimizers({"net": factory}), "seeds": Seeds(), "ranks": ranks}
    context = SimpleNamespace(device=torch.device("cuda"), **given)
    learner, optimizer = Learner(context, "net", net.parameters()), factory(other.parameters())
    descend = StaticSteps("captured")(lambda x: learner.descend(net(x).square().mean()))
    for rate in (0.1, 0.09, 0.08, 0.07, 0.06, 0.0, 0.2):  # the first three are not captured
        learner.set_rate(rate)
        descend(x)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        other(x).square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(net.weight, other.weight)
