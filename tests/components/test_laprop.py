"""LaProp against a float64 NumPy implementation, its state, and the learner that steps it."""

import copy
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rl_lab.components.laprop import LaProp
from rl_lab.components.learner import Learner
from rl_lab.core import Optimizers
from rl_lab.core.ranks import ALONE
from rl_lab.core.seeds import Seeds

torch.set_num_threads(1)
SHAPES = [(4, 3), (5,), (2, 3, 2), ()]


class Reference:
    """The published chain, one tensor after the other: clip, divide by the root mean square, smooth, scale."""

    def __init__(self, parameters, lr, beta1, beta2, eps, agc, pmin, warmup):
        self.parameters = [parameter.astype(np.float64) for parameter in parameters]
        self.squares = [np.zeros_like(parameter) for parameter in self.parameters]
        self.means = [np.zeros_like(parameter) for parameter in self.parameters]
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps
        self.agc, self.pmin, self.warmup, self.count = agc, pmin, warmup, 0

    def step(self, gradients):
        rate = self.lr * (min(1.0, self.count / self.warmup) if self.warmup else 1.0)
        self.count += 1
        for index, gradient in enumerate(gradients):
            update = gradient.astype(np.float64)
            if self.agc:
                limit = self.agc * max(self.pmin, np.sqrt((self.parameters[index] ** 2).sum()))
                update = update / max(1.0, np.sqrt((update**2).sum()) / limit)
            self.squares[index] = self.beta2 * self.squares[index] + (1 - self.beta2) * update**2
            square = self.squares[index] / (1 - self.beta2**self.count)
            update = update / (np.sqrt(square) + self.eps)
            self.means[index] = self.beta1 * self.means[index] + (1 - self.beta1) * update
            self.parameters[index] = self.parameters[index] - rate * self.means[index] / (1 - self.beta1**self.count)


def make_parameters(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def gradients_of_step(step):
    """Return gradients that are now far below the clipping threshold and now far above it."""
    generator = torch.Generator().manual_seed(step)
    scales = (1e-3, 10.0) if step % 2 else (5.0, 1e-4)
    return [scales[i % 2] * torch.randn(shape, generator=generator) for i, shape in enumerate(SHAPES)]


def advance(optimizer, parameters, steps):
    for step in steps:
        for parameter, gradient in zip(parameters, gradients_of_step(step), strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"warmup": 3}, 1e-6),
        ({"warmup": 0, "agc": 0.0, "betas": (0.5, 0.9), "eps": 1e-3}, 1e-5),
        ({"warmup": 1000, "agc": 0.05, "pmin": 2.0}, 1e-6),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_the_reference(options, tolerance, dtype):
    parameters = make_parameters(dtype)
    optimizer = LaProp(parameters, lr=0.02, **options)
    settings = {"betas": (0.9, 0.999), "eps": 1e-20, "agc": 0.3, "pmin": 1e-3, **options}
    beta1, beta2 = settings.pop("betas")
    reference = Reference([p.detach().numpy() for p in parameters], 0.02, beta1, beta2, **settings)
    for step in range(5):
        advance(optimizer, parameters, [step])
        reference.step([gradient.numpy() for gradient in gradients_of_step(step)])
        for parameter, expected in zip(parameters, reference.parameters, strict=True):
            bound = tolerance if dtype is torch.float32 else 1e-7  # the count of steps is float32
            np.testing.assert_allclose(parameter.detach(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_parts_of_one_tensor_are_clipped_as_the_whole(num_seeds):
    torch.manual_seed(0)
    lead = () if num_seeds == 1 else (num_seeds,)
    whole = torch.randn(*lead, 4, 7)
    whole[..., 3:] *= 0.01  # alone its gradient would be cut to a hundredth
    others = [torch.randn(*lead, 5), torch.randn(*lead, 2, 2)]
    halves = [nn.Parameter(part.clone()) for part in whole.split([3, 4], -1)]
    parameters = [halves[0], nn.Parameter(others[0].clone()), halves[1], nn.Parameter(others[1].clone())]
    optimizer = LaProp(parameters, lr=0.1, warmup=0)
    optimizer.param_groups[0].update(num_seeds=num_seeds, joined=[[0, 2]])
    agents = range(num_seeds)
    starts = [[tensor.reshape(num_seeds, *tensor.shape[len(lead) :])[i] for tensor in (whole, *others)] for i in agents]
    settings = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-20, "agc": 0.3, "pmin": 1e-3, "warmup": 0}
    references = [Reference([tensor.numpy() for tensor in start], **settings) for start in starts]
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        gradient = [(3.0 / (1 + step)) * torch.randn(tensor.shape, generator=generator) for tensor in (whole, *others)]
        left, right = gradient[0].split([3, 4], -1)
        for parameter, given in zip(parameters, (left, gradient[1], right, gradient[2]), strict=True):
            parameter.grad = given.clone()
        optimizer.step()
        found = [torch.cat([halves[0], halves[1]], -1), parameters[1], parameters[3]]
        for i, reference in enumerate(references):
            reference.step([tensor.reshape(num_seeds, *tensor.shape[len(lead) :])[i].numpy() for tensor in gradient])
            for tensor, expected in zip(found, reference.parameters, strict=True):
                mine = tensor.detach().reshape(num_seeds, *tensor.shape[len(lead) :])[i]
                np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_checkpoints_from_before_parts_were_joined_go_on_as_they_were():
    parameters = make_parameters()
    optimizer, saved = LaProp(parameters), LaProp(make_parameters()).state_dict()
    optimizer.param_groups[0]["joined"] = [[0, 1]]
    del saved["param_groups"][0]["joined"]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["joined"] == []


def test_the_first_step_of_a_warm_up_moves_nothing_and_the_second_does():
    parameters = make_parameters()
    before = copy.deepcopy(parameters)
    optimizer = LaProp(parameters, lr=1.0, warmup=10)
    advance(optimizer, parameters, [0])
    assert all(torch.equal(now, old) for now, old in zip(parameters, before, strict=True))
    advance(optimizer, parameters, [1])
    assert not any(torch.equal(now, old) for now, old in zip(parameters, before, strict=True))


def test_a_tensor_of_zeros_is_moved_and_one_without_a_gradient_only_drifts():
    still, zeros = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
    optimizer = LaProp([still, zeros], lr=0.1, warmup=0)
    zeros.grad = torch.tensor([1.0, -2.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(zeros.detach(), torch.tensor([-0.1, 0.1, 0.0]))  # one step of the rate, by the sign
    assert torch.equal(still.detach(), torch.ones(3))
    assert float(optimizer.state[still]["step"]) == float(optimizer.state[zeros]["step"]) == 1.0


def test_state_exists_before_the_first_step():
    parameters = make_parameters()
    optimizer = LaProp(parameters)
    for parameter in parameters:
        state = optimizer.state[parameter]
        assert state["square"].shape == state["mean"].shape == parameter.shape
        assert state["step"].dtype == torch.float32
        assert not any(value.any() for value in state.values())


def test_a_restored_optimiser_goes_on_to_the_bit():
    parameters = make_parameters()
    optimizer = LaProp(parameters, lr=0.01, warmup=4)
    advance(optimizer, parameters, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    others = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    restored = LaProp(others, lr=0.5, warmup=7)
    restored.load_state_dict(saved)
    advance(optimizer, parameters, range(3, 7))
    advance(restored, others, range(3, 7))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(parameters, others, strict=True))
    for ours, theirs in zip(parameters, others, strict=True):
        states = optimizer.state[ours], restored.state[theirs]
        assert all(torch.equal(states[0][key], states[1][key]) for key in ("square", "mean", "step"))


class NoHost(TorchDispatchMode):
    """Fails where a tensor's value would be waited for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a step waits for the device"
        return func(*args, **(kwargs or {}))


def test_a_step_never_waits_for_the_device():
    parameters = make_parameters()
    optimizer = LaProp(parameters)
    with NoHost():
        advance(optimizer, parameters, [0])
    with pytest.raises(AssertionError, match="waits"), NoHost():
        torch.ones(()).item()


def test_a_closure_is_called_with_gradients():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = LaProp([parameter], lr=0.1, warmup=0)

    def closure():
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) == 2.0
    torch.testing.assert_close(parameter.detach(), torch.full((2,), 0.9))


def make_learner(net):
    factory = partial(LaProp, lr=0.01, warmup=2)
    given = {"optimizers": Optimizers({"net": factory}), "seeds": Seeds(), "ranks": ALONE}
    context = SimpleNamespace(device=torch.device("cpu"), **given)
    return Learner(context, "net", net.parameters())


def test_a_learner_descends_by_it():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 2), torch.randn(8, 4)
    plain = copy.deepcopy(net)
    learner, optimizer = make_learner(net), LaProp(plain.parameters(), lr=0.01, warmup=2)
    for _ in range(4):
        learner.descend(net(x).square().mean())
        optimizer.zero_grad()
        plain(x).square().mean().backward()
        optimizer.step()
    assert torch.equal(net.weight, plain.weight)
