"""One step of a model, done over and over: through time, fast forwards and backwards.

Plain autograd computes a small weight gradient at every step and adds it to the last one. On a GPU, where the number of
kernels counts, the loop backwards only carries the gradient of the state; with all of those known, the gradients of
parameters and inputs are those of one large batch over all steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_lab.components.layers import BlockLinear
from rl_lab.components.precision import lower_precision, precision_now
from rl_lab.core.context import as_it_is
from rl_lab.core.seeds import is_batched

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
        self.newest: Any = None  # what the newest run must tell the way back
        self.is_batched = False  # over agents: a dimension before that of rows
        self._use(self._run, fuse)
        self._over_agents = copy(self)
        self._over_agents.is_batched = True
        self._over_agents._use(torch.vmap(self._run), fuse)

    def _use(self, run: Run, fuse: Fuse) -> None:
        self.run: Run = fuse(run)  # on the rows of a step
        self.run_all: Run = fuse(run)  # on those of all steps: other shapes, another kernel

    def _run(self, parameters: Tensors, carry: Tensors, inputs: Tensors) -> Tensors:
        return functional_call(self.step, dict(zip(self._names, parameters, strict=True)), (carry, inputs))

    def __call__(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the outputs [T, B, ...] of inputs [T, B, ...] from a first carry [B, ...]."""
        if carry[0].is_cuda and (torch.is_grad_enabled() or is_batched()):
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
        records = torch.is_grad_enabled()
        return _Scan.apply(self, records, len(carry), len(inputs), *carry, *inputs, *self._parameters())

    def over_agents(self) -> Scan:
        """Return what does the same for several agents at once."""
        return self._over_agents

    def recorded(self, carry: Tensors, inputs: Tensors, parameters: Tensors) -> list[tuple[Tensors, Tensors]]:
        """Return carry and outputs of every step, each of which knows the way back to its carry and no further."""
        parameters, tape = self._cast(parameters), []
        for given in zip(*(leaf.unbind() for leaf in inputs), strict=True):
            held = tuple(leaf.detach().requires_grad_(torch.is_grad_enabled()) for leaf in carry)
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
    def forward(scan: Scan, records: bool, num_carry: int, num_inputs: int, *tensors: Tensor) -> Tensors:
        remaining = iter([tensor.detach() for tensor in tensors])
        carry, inputs = tuple(islice(remaining, num_carry)), tuple(islice(remaining, num_inputs))
        parameters = tuple(remaining)
        with torch.set_grad_enabled(records):
            tape = scan.recorded(carry, inputs, parameters)
        scan.newest = tape, inputs, parameters
        return _stacked([outputs for _, outputs in tape])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        """Keep what the way back needs."""
        ctx.scan = inputs[0]
        ctx.tape, ctx.inputs, ctx.parameters = ctx.scan.newest
        ctx.precision = precision_now(ctx.inputs[0].device)
        ctx.scan.newest = None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        scan: Scan,
        records: bool,
        num_carry: int,
        num_inputs: int,
        *tensors: Tensor,
    ) -> tuple[Tensors, tuple[int, ...]]:
        """Do it for several agents at once: the dimension of agents lies before that of rows."""
        moved = []
        for index, (tensor, dim) in enumerate(zip(tensors, in_dims[4:], strict=True)):
            place = 1 if num_carry <= index < num_carry + num_inputs else 0  # inputs begin with time
            shape = list(tensor.shape)
            shape.insert(place, info.batch_size)
            tensor = tensor.unsqueeze(place).expand(shape) if dim is None else tensor.movedim(dim, place)
            moved.append(tensor.contiguous() if index < num_carry else tensor)  # a first carry like all others
        outputs = _Scan.apply(scan.over_agents(), records, num_carry, num_inputs, *moved)
        return outputs, (1,) * len(outputs)

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
        return None, None, None, None, *flowing, *others


def _gradients_of_all(ctx: Any, carries: Tensors, wanted: Tensors) -> list[Tensor | None]:
    """Return the gradients of inputs and parameters, with all steps as one batch."""
    needed = ctx.needs_input_grad[-len(ctx.inputs) - len(ctx.parameters) :]
    if not any(needed):
        return [None] * len(needed)
    joined = _joined_agents if ctx.scan.is_batched else _joined
    given = (*map(joined, ctx.inputs), *ctx.parameters)
    leaves = tuple(tensor.detach().requires_grad_(needs) for tensor, needs in zip(given, needed, strict=True))
    inputs, parameters = leaves[: len(ctx.inputs)], leaves[len(ctx.inputs) :]
    with torch.enable_grad(), ctx.precision():
        outputs = ctx.scan.run_all(parameters, tuple(map(joined, carries)), inputs)
    sources = tuple(leaf for leaf in leaves if leaf.requires_grad)
    found = iter(_gradients(outputs, sources, tuple(map(joined, wanted))))
    gradients = [next(found) if needs else None for needs in needed]
    of_inputs = [
        None if gradient is None else _parted(gradient, like, is_batched=ctx.scan.is_batched)
        for gradient, like in zip(gradients, ctx.inputs, strict=False)
    ]
    return [*of_inputs, *gradients[len(inputs) :]]


def _gradients(outputs: Tensors, sources: Tensors, wanted: Tensors) -> tuple[Tensor | None, ...]:
    """Return the gradients of sources, None of those that no output depends on."""
    pairs = [(output, want) for output, want in zip(outputs, wanted, strict=True) if output.requires_grad]
    return torch.autograd.grad([output for output, _ in pairs], sources, [want for _, want in pairs], allow_unused=True)


def _stacked(steps: Sequence[Tensors]) -> Tensors:
    return tuple(torch.stack(leaves) for leaves in zip(*steps, strict=True))


def _joined(leaf: Tensor) -> Tensor:
    """Return [T B, ...] of [T, B, ...]."""
    return leaf.flatten(0, 1)


def _joined_agents(leaf: Tensor) -> Tensor:
    """Return [S, T B, ...] of [T, S, B, ...]."""
    return leaf.transpose(0, 1).flatten(1, 2)


def _parted(leaf: Tensor, like: Tensor, *, is_batched: bool) -> Tensor:
    """Return what was joined in the shape that it had."""
    return leaf.unflatten(1, (like.shape[0], like.shape[2])).transpose(0, 1) if is_batched else leaf.view_as(like)


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
