"""Several agents of one kind as one: every parameter has a first dimension for the agent, its seed.

A workflow writes its functions for one agent. Those that read parameters are called through `Seeds`, which lets each
agent see its own; what lies between them, such as an optimiser's arithmetic, handles all agents at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_lab.core.trees import Tree, tree_map

Function = Callable[..., Any]
Tensors = list[Tensor] | tuple[Tensor, ...]


class Seeds:
    """How many agents there are; with one, everything is as it is.

    Args:
        num: Of agents.
    """

    def __init__(self, num: int = 1) -> None:
        self.num = num

    def __call__(self, owner: nn.Module, function: Function, fuse: Callable[[Any], Any] | None = None) -> Function:
        """Return a function that does for all agents what `function` does for one.

        Agents are a first dimension of what it takes and returns. It reads parameters of `owner` only; `fuse` makes
        kernels of it.
        """
        if self.num == 1:
            return function if fuse is None else fuse(function)
        call = _Call(owner, function)

        def one(held: Mapping[str, Tensor], given: tuple[Tree, ...]) -> Tree:
            return functional_call(call, dict(held), given)

        every: Function = torch.vmap(one, randomness="different")
        every = every if fuse is None else fuse(every)
        return lambda *args: every(_held(call), args)

    def rows(self, owner: nn.Module, function: Function, dim: int = 0) -> Function:
        """Return a function that does for the rows [S B, ...] of all agents what `function` does for those of one.

        What it returns has its rows in dimension `dim`.
        """
        if self.num == 1:
            return function
        each = self(owner, function)
        return lambda *args: self.merge(each(*self.split(args)), dim)

    def first(self, owner: nn.Module, function: Function) -> Function:
        """Return a function that does with what all agents have, [S, ...], what `function` does with the first's."""
        if self.num == 1:
            return function
        call = _Call(owner, function)

        def of_first(tree: Tree) -> Tree:
            return tree_map(lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf, tree)

        return lambda *args: functional_call(call, of_first(_held(call)), of_first(args))

    def split(self, tree: Tree) -> Tree:
        """Return rows [S B, ...] of all agents as [S, B, ...]."""
        return tree if self.num == 1 else tree_map(lambda leaf: leaf.unflatten(0, (self.num, -1)), tree)

    def merge(self, tree: Tree, dim: int = 0) -> Tree:
        """Return [S, B, ...] as rows [S B, ...], or those whose rows are their own dimension `dim` with rows there."""
        return tree if self.num == 1 else tree_map(lambda leaf: leaf.movedim(0, dim).flatten(dim, dim + 1), tree)

    def means(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the means over agents of numbers [S], and each agent's own as `name/seed_0` and so on."""
        if self.num == 1:
            return metrics
        every = torch.stack(list(metrics.values()))  # [K, S]
        names = [f"{name}/seed_{agent}" for name in metrics for agent in range(self.num)]
        own = dict(zip(names, every.flatten().unbind(), strict=True))
        return dict(zip(metrics, every.mean(1).unbind(), strict=True)) | own

    def norms(self, tensors: Tensors) -> Tensor:
        """Return the lengths of tensors, [K], or those of every agent's, [K, S]."""
        if self.num == 1:
            return torch.stack(torch._foreach_norm(tensors))
        slices = [part for tensor in tensors for part in tensor.unbind()]  # few kernels for all of them
        return torch.stack(torch._foreach_norm(slices)).view(-1, self.num)

    def scaled(self, tensors: Tensors, factors: Tensors) -> list[Tensor]:
        """Return tensors times factors, each a number or one for every agent, [S]."""
        pairs = zip(tensors, factors, strict=True)
        return [t * (f if self.num == 1 else f.view(-1, *[1] * (t.dim() - 1))) for t, f in pairs]


ONE_AGENT = Seeds()


class _Call(nn.Module):
    """A function as a module, so that it can be called with other parameters of its owner."""

    def __init__(self, owner: nn.Module, function: Function) -> None:
        super().__init__()
        self.owner, self.function = owner, function

    def forward(self, *args: Any) -> Any:
        """Call it."""
        return self.function(*args)


def _held(call: nn.Module) -> dict[str, Tensor]:
    return {**dict(call.named_parameters()), **dict(call.named_buffers())}


def is_batched() -> bool:
    """Return whether the code that asks runs for all agents at once; what compiles cannot follow it there."""
    return torch._C._are_functorch_transforms_active()


def stack_agents(agents: Sequence[nn.Module], optimizers: Sequence[Sequence[torch.optim.Optimizer]]) -> None:
    """Make the first agent, with its optimisers, all of them: what each holds becomes a slice of what it holds."""
    states = [_held(agent) for agent in agents]
    for name, tensor in states[0].items():
        tensor.data = torch.stack([state[name].data for state in states])
    for alike in zip(*optimizers, strict=True):
        for kept in zip(*(optimizer.state.values() for optimizer in alike), strict=True):
            for key, value in kept[0].items():
                if isinstance(value, Tensor) and key != "step":  # which all agents share
                    value.data = torch.stack([state[key] for state in kept])
