"""Random draws of a policy as values that come from outside: a function in a file has no random stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rl_lab.core.errors import UsageError

Distribution = Literal["normal", "uniform", "exponential"]
NEUTRAL: dict[Distribution, float] = {"normal": 0.0, "uniform": 0.5, "exponential": 1.0}  # mean or likeliest
_KINDS: dict[Callable[..., Any], Distribution] = {
    torch.randn: "normal",
    torch.randn_like: "normal",
    torch.rand: "uniform",
    torch.rand_like: "uniform",
    Tensor.exponential_: "exponential",
}
_OTHERS: dict[Callable[..., Any], str] = {
    torch.multinomial: "multinomial",
    torch.bernoulli: "bernoulli",
    torch.normal: "normal",
    torch.randint: "randint",
    torch.randperm: "randperm",
    Tensor.multinomial: "multinomial",
    Tensor.bernoulli: "bernoulli",
    Tensor.uniform_: "uniform_",
    Tensor.normal_: "normal_",
    Tensor.random_: "random_",
    Tensor.bernoulli_: "bernoulli_",
}


class Draw(NamedTuple):
    """One draw of a call."""

    distribution: Distribution
    shape: tuple[int, ...]


class Draws(TorchFunctionMode):
    """Within it, draws of standard distributions are noted and, where values are given, are these in their order."""

    def __init__(self, values: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.found: list[Draw] = []
        self._values = values

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, or stand in for its draw."""
        if func in _OTHERS:
            raise UsageError(f"this policy cannot be exported: it draws its actions with torch's {_OTHERS[func]}")
        if func in _KINDS and self._values is not None:
            drawn = self._values[len(self.found)].clone()
        else:
            drawn = func(*args, **(kwargs or {}))
        if func in _KINDS:
            self.found.append(Draw(_KINDS[func], tuple(drawn.shape)))
        return drawn
