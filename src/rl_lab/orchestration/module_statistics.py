"""Sizes of weights, of their gradients and of their changes, for each module of a workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

OWN = "workflow"  # the name of parameters that lie in no module of their own


class Held(NamedTuple):
    """The gradient that a tensor held at some time: itself, how often torch had written it, and what it was."""

    gradient: Tensor | None
    version: int
    copy: Tensor | None

    @classmethod
    def of(cls, holder: Tensor) -> Held:
        """Remember the gradient that it holds now."""
        grad = holder.grad
        return cls(None, 0, None) if grad is None else cls(grad, grad._version, grad.detach().clone())

    def is_still_that_of(self, holder: Tensor) -> bool:
        """Return whether no update has written another since: a stale one is no part of a checkpoint."""
        grad = holder.grad
        if grad is None or self.copy is None or grad is not self.gradient or grad._version != self.version:
            return False
        return torch.equal(grad, self.copy)  # arrays may share its memory, and torch not know of it


class Source(NamedTuple):
    """Where the gradient of a parameter lies: its own, or a part of that of a flat tensor whose memory it shares."""

    holder: Tensor
    start: int
    num: int

    def gradient(self) -> Tensor | None:
        """Return the gradient, if there is one."""
        grad = self.holder.grad
        return None if grad is None else grad.reshape(-1)[self.start : self.start + self.num]


class ModuleStatistics:
    """Measures every module that has parameters of its own.

    Args:
        workflow: Whose modules.
        optimizers: Which hold gradients, where parameters were joined into one.
    """

    def __init__(self, workflow: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        held = [p for optimizer in optimizers.values() for group in optimizer.param_groups for p in group["params"]]
        self._modules = {
            name or OWN: own
            for name, module in workflow.named_modules()
            if (own := dict(module.named_parameters(recurse=False)))
        }
        self._sources = {
            (name, key): _source(parameter, held)
            for name, own in self._modules.items()
            for key, parameter in own.items()
        }
        self._before, self._held = self._copies(), self._gradients()

    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """Return `module/weight_norm`, `weight_max`, `change_norm` since the last time and, if known, `grad_norm`."""
        now, numbers = self._copies(), dict[str, Tensor]()
        for name, own in self._modules.items():
            weights = [now[name, key] for key in own]
            changes = [now[name, key] - self._before[name, key] for key in own]
            gradients = [grad for key in own if (grad := self._new_gradient(name, key)) is not None]
            numbers[f"{name}/weight_norm"] = _norm(weights)
            numbers[f"{name}/weight_max"] = max((w.abs().max() for w in weights if w.numel()), default=_zero())
            numbers[f"{name}/change_norm"] = _norm(changes)
            if gradients:
                numbers[f"{name}/grad_norm"] = _norm(gradients)
        self._before, self._held = now, self._gradients()
        return numbers

    def _new_gradient(self, name: str, key: str) -> Tensor | None:
        """Return the gradient of a parameter if the newest update has written it."""
        source = self._sources[name, key]
        is_stale = self._held[id(source.holder)].is_still_that_of(source.holder)
        return None if is_stale else source.gradient()

    def _gradients(self) -> dict[int, Held]:
        return {id(source.holder): Held.of(source.holder) for source in self._sources.values()}

    def _copies(self) -> dict[tuple[str, str], Tensor]:
        parameters = ((name, key, p) for name, own in self._modules.items() for key, p in own.items())
        return {(name, key): parameter.detach().clone().float() for name, key, parameter in parameters}


def _source(parameter: Tensor, held: Iterable[Tensor]) -> Source:
    for holder in held:
        offset = parameter.data_ptr() - holder.data_ptr()
        is_within = 0 <= offset < holder.numel() * holder.element_size()
        if holder is not parameter and is_within and holder.dtype == parameter.dtype and holder.is_contiguous():
            return Source(holder, offset // holder.element_size(), parameter.numel())
    return Source(parameter, 0, parameter.numel())


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    parts = [torch.linalg.vector_norm(tensor.float()) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack([part.to(parts[0].device) for part in parts])) if parts else _zero()


def _zero() -> Tensor:
    return torch.zeros(())
