"""An optimiser with its parameters: one call descends a loss, the same whether it runs eager, compiled or captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_lab.components.flat import bare_step, set_capturable, set_learning_rate
from rl_lab.core import WorkflowContext
from rl_lab.core.seeds import ONE_AGENT, Seeds
from rl_lab.core.shards import Shards
from rl_lab.ops.schedules import linear_decay

M = TypeVar("M", bound=nn.Module)
P = TypeVar("P")
COMPILABLE = (torch.optim.Adam, torch.optim.AdamW)


class AdamSlot(NamedTuple):
    """A parameter and what Adam keeps of it."""

    parameter: Tensor
    mean: Tensor
    square: Tensor
    step: Tensor


class Learner:
    """Descends losses by the optimiser `name` of the YAML, Adam when it has none.

    Args:
        context: Of the workflow.
        name: Of the optimiser.
        parameters: What it changes.
        lr: Learning rate when the YAML says nothing.
        max_grad_norm: Longest gradient; None leaves it free.
        eps: Of Adam, when the YAML says nothing.
        joined: Those of the parameters that are one tensor in parts, which LaProp clips together.
        undecayed: Those of the parameters that weight decay leaves alone.
        shards: Of which the parameters are this rank's part; None: each rank has them whole.
    """

    def __init__(
        self,
        context: WorkflowContext,
        name: str,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float = 3e-4,
        max_grad_norm: float | None = None,
        eps: float = 1e-8,
        joined: Iterable[Sequence[Tensor]] = (),
        undecayed: Iterable[nn.Parameter] = (),
        shards: Shards | None = None,
    ) -> None:
        groups = _by_decay(list(parameters), undecayed)
        self.parameters, self._shards = [parameter for group in groups for parameter in group["params"]], shards
        self._max_grad_norm, self._seeds, self.ranks = max_grad_norm, context.seeds, context.ranks
        default = partial(torch.optim.Adam, lr=lr, eps=eps, fused=True)
        self.optimizer = context.optimizers.build(name, groups, default=default)
        self.initial_rate = float(self.optimizer.param_groups[0]["lr"])  # what a schedule begins with
        self._step = bare_step(self.optimizer)
        set_capturable(self.optimizer, context.device)
        for group in self.optimizer.param_groups:
            if "num_seeds" in group:
                group["num_seeds"] = context.seeds.num
            if "joined" in group:
                places = {id(parameter): index for index, parameter in enumerate(self.parameters)}
                group["joined"] = [[places[id(part)] for part in parts] for parts in joined]
        self._slots: list[AdamSlot] = []
        if isinstance(self.optimizer, COMPILABLE):
            self._make_state(self.optimizer)
            self._bind(self.optimizer)
            self.optimizer.register_load_state_dict_post_hook(self._bind)

    def descend(self, loss: Tensor) -> Tensor:
        """Take one step down the gradient of `loss` and return the gradient's norm before clipping; each [S] or []."""
        return descend_together(loss, [self])[0]

    def descend_over(self, loss: Callable[[P], Tensor], parts: Iterable[P]) -> tuple[Tensor, Tensor]:
        """Take one step down the sum of the losses of parts; return it, and the gradient's norm before clipping.

        What one part needs on the way to its gradient is gone before the next one begins.
        """
        total: Tensor | None = None
        gradients: tuple[Tensor, ...] = ()
        for part in parts:
            own = loss(part)
            more = self._gradients(own)
            gradients = tuple(torch._foreach_add(gradients, more)) if gradients else more
            total = own.detach() if total is None else total + own.detach()
        assert total is not None, "there are no parts"
        return total, self.apply(gradients if self._shards is not None else self.ranks.means(gradients))

    def _gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        """Return those of this rank; of sharded weights, its part of the mean over ranks."""
        if self._shards is not None:
            return self._shards.gradients(loss)
        return torch.autograd.grad(loss, self.parameters)

    def apply(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """Take one step down these gradients and return their norm before clipping."""
        gradients = tuple(gradient.contiguous() for gradient in gradients)  # fused kernels take that for granted
        norm = torch.linalg.vector_norm(self._seeds.norms(gradients), dim=0)
        norm = norm if self._shards is None else self._shards.joined(norm)
        if self._max_grad_norm is not None:
            gradients = _shortened(gradients, norm, self._max_grad_norm, self._seeds)
        if torch.compiler.is_compiling():
            with torch.no_grad():
                begin = 0
                for group in self.optimizer.param_groups:
                    end = begin + len(group["params"])
                    adam_step(self._slots[begin:end], gradients[begin:end], group)
                    begin = end
        else:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            self._step()
        return norm

    def set_rate(self, rate: float) -> None:
        """Set the learning rate, before the first step too."""
        set_learning_rate(self.optimizer, rate, in_tensor=True)

    def _make_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Make Adam's state now, as its first step would: what is compiled must find it."""
        group = optimizer.param_groups[0]
        on_device = bool(group["fused"] or group["capturable"])
        for parameter in self.parameters:
            home = parameter.device if on_device else torch.device("cpu")
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            if group["amsgrad"]:
                moments["max_exp_avg_sq"] = torch.zeros_like(parameter)
            optimizer.state[parameter] = {"step": torch.zeros((), dtype=torch.float32, device=home), **moments}

    def _bind(self, optimizer: torch.optim.Optimizer) -> None:
        """Hold on to the optimiser's state, which loading replaces."""
        states = [(parameter, optimizer.state[parameter]) for parameter in self.parameters]
        self._slots = [AdamSlot(p, state["exp_avg"], state["exp_avg_sq"], state["step"]) for p, state in states]


def _by_decay(parameters: list[nn.Parameter], undecayed: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return the groups of an optimiser: those that weight decay acts on, and then the others, if there are any."""
    apart = {id(parameter) for parameter in undecayed}
    decayed = {"params": [parameter for parameter in parameters if id(parameter) not in apart]}
    others = [parameter for parameter in parameters if id(parameter) in apart]
    return [decayed, {"params": others, "weight_decay": 0.0}] if others else [decayed]


def set_rates(
    learners: Iterable[Learner | None], schedule: Literal["constant", "linear"], progress: float
) -> dict[str, float]:
    """Set the rates of those learners that there are; return the first one's as a metric. Constant ones are left alone.

    `progress` is the share of the phase that is over: linear rates are 0 at its end.
    """
    rates = []
    for learner in learners:
        if learner is not None and schedule == "linear":
            rates.append(linear_decay(learner.initial_rate, progress))
            learner.set_rate(rates[-1])
    return {"learning_rate": rates[0]} if rates else {}


def descend_together(loss: Tensor, learners: Iterable[Learner]) -> list[Tensor]:
    """Let several learners take a step down one loss, with one pass backwards; return the norms of their gradients."""
    learners = list(learners)
    loss = loss.sum() if loss.dim() else loss  # agents do not know of each other: their gradients lie side by side
    gradients = iter(_gradients(loss, learners))
    return [learner.apply(tuple(islice(gradients, len(learner.parameters)))) for learner in learners]


def descend_as_one(loss: Tensor, learners: Iterable[Learner], max_grad_norm: float | None) -> Tensor:
    """Let learners take a step down one loss whose whole gradient is cut to a length; return its norm before that."""
    learners = list(learners)
    gradients = _gradients(loss, learners)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_grad_norm is not None:
        gradients = _shortened(gradients, norm, max_grad_norm, ONE_AGENT)
    left = iter(gradients)
    for learner in learners:
        learner.apply(tuple(islice(left, len(learner.parameters))))
    return norm


def _gradients(loss: Tensor, learners: list[Learner]) -> tuple[Tensor, ...]:
    """Return the gradients by all that the learners change: of the mean of all ranks' losses."""
    gradients = torch.autograd.grad(loss, [p for learner in learners for p in learner.parameters])
    return learners[0].ranks.means(gradients)


def _shortened(gradients: tuple[Tensor, ...], norm: Tensor, longest: float, seeds: Seeds) -> tuple[Tensor, ...]:
    """Return gradients of this norm, scaled down where they are too long."""
    scale = (longest / (norm + 1e-6)).clamp(max=1.0)
    return tuple(seeds.scaled(gradients, [scale] * len(gradients)))


def adam_step(slots: Iterable[AdamSlot], gradients: Iterable[Tensor], options: dict[str, Any]) -> None:
    """Do in place what `torch.optim.Adam` or `AdamW` with these options does, in operations that compilers fuse."""
    beta1, beta2 = options["betas"]
    lr, eps, decay = options["lr"], options["eps"], options["weight_decay"]
    for slot, gradient in zip(slots, gradients, strict=True):
        if decay and options["decoupled_weight_decay"]:
            slot.parameter.mul_(1 - lr * decay)
        elif decay:
            gradient = gradient + decay * slot.parameter
        slot.step.add_(1)
        slot.mean.lerp_(gradient, 1 - beta1)
        slot.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = slot.square.sqrt() / (1 - beta2**slot.step).sqrt() + eps
        slot.parameter.sub_(slot.mean / denominator * (lr / (1 - beta1**slot.step)))


def frozen_copy(module: M) -> M:
    """Return a copy that no loss changes: a target network."""
    return deepcopy(module).requires_grad_(False)


def frozen(module: nn.Module) -> Callable[..., Any]:
    """Return the module's forward function, by which no gradient reaches its parameters."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return lambda *args: functional_call(module, parameters, args)


@torch.no_grad()
def polyak(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move every parameter of `target` the fraction `tau` of its way to that of `source`."""
    moved: list[Tensor] = list(target.parameters())
    if moved:
        torch._foreach_lerp_(moved, list(source.parameters()), tau)


def trained(*modules: nn.Module | None) -> Iterator[nn.Parameter]:
    """Yield the parameters that learn, of those modules that there are."""
    for module in modules:
        if module is not None:
            yield from (parameter for parameter in module.parameters() if parameter.requires_grad)
