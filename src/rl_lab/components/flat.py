"""Many parameters in one tensor: norms, clipping and optimiser steps become one operation each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.actor_critic import ActorCritic, Inputs
from rl_lab.components.mlp import MLP
from rl_lab.core import Carry
from rl_lab.core.context import RATE_SHARE
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.ops.distributions import Distribution


class FlatParameters:
    """Moves parameters into one flat tensor, of which they become views; hand `tensor` to the optimiser.

    Elementwise optimisers (SGD, Adam, AdamW, RMSprop) do the same to the flat tensor as to its parts. Loading a state
    dict copies into the views and so keeps them; move the module to its device first.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parts = list(parameters)
        self.tensor = nn.Parameter(torch.cat([part.detach().flatten() for part in self.parts]))
        for part, view in zip(self.parts, self.tensor.data.split([p.numel() for p in self.parts]), strict=True):
            part.data = view.view_as(part)


def paired_order(policy: ActorCritic) -> list[Any]:
    """Return the parameters with those of actor and critic layer by layer beside each other, then heads, then others.

    The order is that of the optimiser's state and so the same whether or not the pair is computed as one.
    """
    actor, critic = (
        [module for module in trunk.modules() if isinstance(module, nn.Linear)] if isinstance(trunk, MLP) else []
        for trunk in (policy.actor, policy.critic)
    )
    if len(actor) != len(critic) or policy.head.layer is None:
        return list(policy.parameters())
    ordered: list[Any] = [p for a, c in zip(actor, critic, strict=True) for p in (a.weight, c.weight, a.bias, c.bias)]
    ordered += [p for head in (policy.head.layer, policy.value_head) for p in (head.weight, head.bias)]
    known = {id(p) for p in ordered}
    return ordered + [p for p in policy.parameters() if id(p) not in known]


class Evaluation(NamedTuple):
    """What a policy says of actions that were taken, and the value of where they were taken; tensors or arrays."""

    log_prob: Any
    entropy: Any  # mean
    values: Any


class FlatActorCritic(FlatParameters):
    """Any `ActorCritic` over one flat parameter, differentiated by autograd; gradients are the means of all ranks'."""

    def __init__(self, policy: ActorCritic, ranks: Ranks = ALONE) -> None:
        super().__init__(paired_order(policy))
        self._policy, self._ranks = policy, ranks
        self._outputs: tuple[Tensor, ...] = ()

    def policy(self, inputs: Inputs, carry: Carry, is_first: Tensor) -> tuple[Distribution, Carry]:
        """Return the policy and the next carry: all that acting needs."""
        return self._policy.policy(inputs, carry, is_first)

    def native(self, rollout: Any) -> Any:
        """Return a tree of tensors in the form that `evaluate` takes."""
        return rollout

    def evaluate(self, inputs: Inputs, carry: Carry, is_first: Tensor | None, actions: Tensor) -> Evaluation:
        """Evaluate actions and remember what `set_gradient` needs."""
        pi, values, _ = self._policy(inputs, carry, is_first)
        self._outputs = pi.log_prob(actions), pi.entropy().mean(), values
        return Evaluation(*(output.detach() for output in self._outputs))

    def set_gradient(
        self, log_prob_grad: Tensor, entropy_grad: float, value_grad: Tensor, max_norm: float | None, *losses: Tensor
    ) -> Tensor:
        """Set the gradient, given those by what `evaluate` returned, and of other losses; return its unclipped norm."""
        grads = (
            log_prob_grad,
            torch.full_like(self._outputs[1], entropy_grad),
            value_grad,
            *map(torch.ones_like, losses),
        )
        parts = torch.autograd.grad((*self._outputs, *losses), self.parts, grads, materialize_grads=True)
        self.tensor.grad = self._ranks.mean_(torch.cat([part.flatten() for part in parts]))
        return clip_gradient(self.tensor.grad, max_norm)


def clip_gradient(gradient: Tensor, max_norm: float | None) -> Tensor:
    """Scale `gradient` down to `max_norm` in place where it is longer; return its norm before that."""
    norm = torch.linalg.vector_norm(gradient)
    if max_norm is not None:
        gradient.mul_((max_norm / norm).clamp_(max=1.0))
    return norm


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return `optimizer.step` without profiler ranges and step hooks, which cost more than a small network's step."""
    step = torch.no_grad()(inspect.unwrap(type(optimizer).step))
    return partial(step, optimizer)


@torch.no_grad()
def masked_step(optimizer: torch.optim.Optimizer, keep: Tensor) -> None:
    """Step; where `keep` (a 0-dim bool) is False, parameters and optimiser state end bit for bit as they were.

    The very first step of an optimiser makes its state and must not be masked.
    """
    touched = [p for group in optimizer.param_groups for p in group["params"]]
    touched += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    before = [tensor.clone() for tensor in touched]
    optimizer.step()
    for tensor, old in zip(touched, before, strict=True):
        tensor.copy_(torch.where(keep, tensor, old))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float, *, in_tensor: bool = False) -> None:
    """Set the learning rate, before the first step too; compiled and captured steps look it up in a tensor.

    Where an alert has lowered the rate, it is so much lower than the schedule says.
    """
    for group in optimizer.param_groups:
        own, device = rate * group.get(RATE_SHARE, 1.0), group["params"][0].device
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = torch.full((), own, device=device) if in_tensor or device.type == "cuda" else own


def set_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Let an optimiser count its steps on a GPU, where it can: captured steps need that."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = device.type == "cuda"
