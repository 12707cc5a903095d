"""Scans: the values and gradients of a plain loop, in which part of the step is learned, compiled, in low precision."""

import pytest
import torch
from torch import nn

from rl_lab.components.scan import Scan, Step

ROWS, STEPS = 3, 5
WAYS = (Scan.step_by_step, Scan.at_once)


class Cell(Step):
    """Two states, an input, noise, and an output that is not carried on."""

    def __init__(self):
        super().__init__()
        self.reader, self.mixer = nn.Linear(4, 6), nn.Linear(6, 6)
        self.norm, self.aside = nn.LayerNorm(6), nn.Linear(2, 2)  # no step uses the last one

    def forward(self, carry, inputs):
        fast, slow = carry
        seen, noise = inputs
        hidden = torch.tanh(self.norm(self.mixer(fast)) + self.reader(seen))
        return hidden + noise, 0.9 * slow + hidden, hidden.square().mean(-1, keepdim=True)


def make(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    cell = Cell().to(dtype)
    carry = tuple(torch.randn(ROWS, 6, dtype=dtype, requires_grad=True) for _ in range(2))
    inputs = torch.randn(STEPS, ROWS, 4, dtype=dtype, requires_grad=True), torch.randn(STEPS, ROWS, 6, dtype=dtype)
    return cell, carry, inputs


def naive(cell, carry, inputs):
    found = []
    for given in zip(*inputs, strict=True):
        found.append(cell(carry, given))
        carry = found[-1][:2]
    return tuple(torch.stack(leaves) for leaves in zip(*found, strict=True))


def loss_of(outputs):
    return sum((index + 1) * output.square().sum() for index, output in enumerate(outputs))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fuse", [lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_values_and_gradients_are_those_of_a_loop(fuse, way):
    torch._dynamo.reset()
    cell, carry, inputs = make()
    sources = (*carry, inputs[0], *(p for name, p in cell.named_parameters() if not name.startswith("aside")))
    expected = naive(cell, carry, inputs)
    gradients = torch.autograd.grad(loss_of(expected), sources)
    found = way(Scan(cell, fuse), carry, inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    for one, other in zip(torch.autograd.grad(loss_of(found), sources), gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_only_what_is_learned_gets_gradients(way):
    cell, carry, inputs = make()
    expected = torch.autograd.grad(loss_of(naive(cell, carry, inputs)), list(cell.reader.parameters()))
    found = loss_of(way(Scan(cell, learned=cell.reader), carry, inputs))
    for one, other in zip(torch.autograd.grad(found, list(cell.reader.parameters())), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    found = loss_of(way(Scan(cell, learned=cell.reader), carry, inputs))
    assert torch.autograd.grad(found, list(cell.mixer.parameters()), allow_unused=True) == (None, None)


def test_without_gradients_nothing_is_kept():
    cell, carry, inputs = make()
    expected = naive(cell, carry, inputs)
    with torch.no_grad():
        found = Scan(cell)(carry, inputs)
    assert not any(output.requires_grad for output in found)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [1, 2])
def test_low_precision_is_that_of_a_loop_also_after_a_step_has_changed_the_weights(steps, way):
    found = []
    for run in (naive, lambda cell, carry, inputs: way(Scan(cell), carry, inputs)):
        cell, carry, inputs = make(dtype=torch.float32)
        weights = [*cell.reader.parameters(), *cell.mixer.parameters()]
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            for _ in range(steps):
                outputs = run(cell, carry, inputs)
                gradients = torch.autograd.grad(loss_of(outputs), weights)
                with torch.no_grad():
                    for parameter, gradient in zip(weights, gradients, strict=True):
                        parameter -= 0.1 * gradient.sign()
        found.append((outputs, gradients))
    (expected, expected_gradients), (outputs, gradients) = found
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)  # which are of one type
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * float(other.abs().max()))
    exact = naive(*make(dtype=torch.float32))
    assert (exact[0] - outputs[0]).abs().max() > 1e-4


def test_a_carry_that_no_step_reads_gets_no_gradient():
    class Forgetful(Cell):
        def forward(self, carry, inputs):
            return super().forward((torch.zeros_like(carry[0]), carry[1]), inputs)

    _, carry, inputs = make()
    cell = Forgetful().double()
    found = torch.autograd.grad(loss_of(Scan(cell).at_once(carry, inputs)), carry)
    expected = torch.autograd.grad(loss_of(naive(cell, carry, inputs)), carry, allow_unused=True)
    assert expected[0] is None
    assert not found[0].any()
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-10)
