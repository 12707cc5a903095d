"""One step of a model, done over and over: through time, fast forwards and backwards.

Plain autograd computes a small weight gradient at every step and adds it to the last one. On a GPU, where the number of
kernels counts, the loop backwards only carries the gradient of the state; with all of those known, the gradients of
parameters and inputs are those of one large batch over all steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_lab.components.layers import BlockLinear
from rl_lab.components.precision import lower_precision, precision_now
from rl_lab.core.context import as_it_is

Tensors = tuple[Tensor, ...]
Fuse = Callable[[Any], Any]  # makes few kernels of a function of fixed shapes, or leaves it as it is
Run = Callable[[Tensors, Tensors, Tensors], Tensors]


class Step(nn.Module):
    """One step: carry and inputs of this step, all [B, ...], to outputs [B, ...] that begin with the next carry.

    The rows of a batch do not know of each other, and nothing is drawn: noise is an input.
    """

    heads: tuple[nn.Module, ...] = ()  # layers that compute in float32 whatever the others do

    @abstractmethod
    def forward(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the outputs."""


class Scan:
    """Runs a step over time.

    Args:
        step: What is done.
        fuse: How its kernels are made.
        learned: Part of the step whose parameters get gradients; None: the whole step.
    """

    def __init__(self, step: Step, fuse: Fuse = as_it_is, *, learned: nn.Module | None = None) -> None:
        self.step = step
        wanted = {id(parameter) for parameter in (step if learned is None else learned).parameters()}
        self._names = [name for name, _ in step.named_parameters()]
        factors = factors_of_products(step, step.heads)
        self._is_cast = [name in factors for name in self._names]
        self._is_learned = [id(parameter) in wanted for parameter in step.parameters()]
        self.run: Run = fuse(self._run)  # on the rows of a step
        self.run_all: Run = fuse(self._run)  # on those of all steps: other shapes, another kernel

    def _run(self, parameters: Tensors, carry: Tensors, inputs: Tensors) -> Tensors:
        return functional_call(self.step, dict(zip(self._names, parameters, strict=True)), (carry, inputs))

    def __call__(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the outputs [T, B, ...] of inputs [T, B, ...] from a first carry [B, ...]."""
        if torch.is_grad_enabled() and carry[0].is_cuda:
            return self.at_once(carry, inputs)
        return self.step_by_step(carry, inputs)  # on a CPU it is the arithmetic that counts, and this is the least

    def step_by_step(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the outputs, with the gradients of a plain loop."""
        parameters, found = self._cast(self._parameters()), []
        for given in zip(*(leaf.unbind() for leaf in inputs), strict=True):
            found.append(self.run(parameters, carry, given))
            carry = found[-1][: len(carry)]
        return _stacked(found)

    def at_once(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the outputs; gradients of parameters and inputs are computed for all steps at once."""
        return _Scan.apply(self, len(carry), len(inputs), *carry, *inputs, *self._parameters())

    def recorded(self, carry: Tensors, inputs: Tensors, parameters: Tensors) -> list[tuple[Tensors, Tensors]]:
        """Return carry and outputs of every step, each of which knows the way back to its carry and no further."""
        parameters, tape = self._cast(parameters), []
        for given in zip(*(leaf.unbind() for leaf in inputs), strict=True):
            held = tuple(leaf.detach().requires_grad_() for leaf in carry)
            tape.append((held, self.run(parameters, held, given)))
            carry = tape[-1][1][: len(held)]
        return tape

    def _parameters(self) -> Tensors:
        pairs = zip(self.step.parameters(), self._is_learned, strict=True)
        return tuple(parameter if is_learned else parameter.detach() for parameter, is_learned in pairs)

    def _cast(self, parameters: Tensors) -> Tensors:
        """Return the parameters with weights in the precision of matrix products: once, and not at every step."""
        lower = lower_precision(parameters[0].device)
        if lower is None:
            return parameters
        return tuple(p.to(lower) if is_cast else p for p, is_cast in zip(parameters, self._is_cast, strict=True))


class _Scan(torch.autograd.Function):
    """The loop, and the way back through it."""

    @staticmethod
    def forward(ctx: Any, scan: Scan, num_carry: int, num_inputs: int, *tensors: Tensor) -> Tensors:
        remaining = iter([tensor.detach() for tensor in tensors])
        carry, inputs = tuple(islice(remaining, num_carry)), tuple(islice(remaining, num_inputs))
        parameters = tuple(remaining)
        with torch.enable_grad():
            tape = scan.recorded(carry, inputs, parameters)
        ctx.scan, ctx.tape, ctx.inputs, ctx.parameters = scan, tape, inputs, parameters
        ctx.precision = precision_now(inputs[0].device)
        return _stacked([outputs for _, outputs in tape])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        tape = ctx.tape
        flowing: Tensors = ()
        of_steps = list(zip(*(leaf.unbind() for leaf in gradients), strict=True))
        for index in reversed(range(len(tape))):
            carry, outputs = tape[index]
            if flowing:  # what the steps after this one want of its carry
                summed = torch._foreach_add(of_steps[index][: len(flowing)], flowing)
                of_steps[index] = (*summed, *of_steps[index][len(flowing) :])
            found = _gradients(outputs, carry, of_steps[index])
            flowing = tuple(
                torch.zeros_like(leaf) if gradient is None else gradient
                for leaf, gradient in zip(carry, found, strict=True)
            )
        others = _gradients_of_all(ctx, _stacked([carry for carry, _ in tape]), _stacked(of_steps))
        del ctx.tape
        return None, None, None, *flowing, *others


def _gradients_of_all(ctx: Any, carries: Tensors, wanted: Tensors) -> list[Tensor | None]:
    """Return the gradients of inputs and parameters, with all steps as one batch."""
    needed = ctx.needs_input_grad[-len(ctx.inputs) - len(ctx.parameters) :]
    if not any(needed):
        return [None] * len(needed)
    given = (*_flat(ctx.inputs), *ctx.parameters)
    leaves = tuple(tensor.detach().requires_grad_(needs) for tensor, needs in zip(given, needed, strict=True))
    inputs, parameters = leaves[: len(ctx.inputs)], leaves[len(ctx.inputs) :]
    with torch.enable_grad(), ctx.precision():
        outputs = ctx.scan.run_all(parameters, _flat(carries), inputs)
    found = iter(_gradients(outputs, tuple(leaf for leaf in leaves if leaf.requires_grad), _flat(wanted)))
    gradients = [next(found) if needs else None for needs in needed]
    shaped = zip(gradients, ctx.inputs, strict=False)
    return [
        *(None if gradient is None else gradient.view_as(like) for gradient, like in shaped),
        *gradients[len(inputs) :],
    ]


def _gradients(outputs: Tensors, sources: Tensors, wanted: Tensors) -> tuple[Tensor | None, ...]:
    """Return the gradients of sources, None of those that no output depends on."""
    pairs = [(output, want) for output, want in zip(outputs, wanted, strict=True) if output.requires_grad]
    return torch.autograd.grad([output for output, _ in pairs], sources, [want for _, want in pairs], allow_unused=True)


def _stacked(steps: Sequence[Tensors]) -> Tensors:
    return tuple(torch.stack(leaves) for leaves in zip(*steps, strict=True))


def _flat(leaves: Tensors) -> Tensors:
    """Return [T B, ...] of [T, B, ...]."""
    return tuple(leaf.flatten(0, 1) for leaf in leaves)


def factors_of_products(module: nn.Module, heads: Sequence[nn.Module] = ()) -> set[str]:
    """Return the names of parameters in matrix products, where a bias may be added within; without those of heads."""
    found: set[str] = set()
    for name, layer in module.named_modules():
        if layer in heads:
            continue
        if isinstance(layer, nn.Linear | nn.GRUCell):
            found |= {f"{name}.{own}" for own, _ in layer.named_parameters()}
        elif isinstance(layer, BlockLinear):
            found.add(f"{name}.weight")
    return found
