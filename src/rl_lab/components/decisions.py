"""Decisions of agents with a state, as static functions: on a GPU, hundreds of small kernels become one graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import Actions, Carry, ConfigError, Observation, WorkflowContext

Decide = Callable[[Any, Observation, Carry, Tensor], tuple[Actions, Carry]]


class Decisions:
    """Calls a deciding function through a static one for each behaviour and number of environments: shapes are fixed.

    Args:
        decide: Method of a workflow: takes behaviour, observations, carry and `is_first`; returns actions and the next
            carry.
        context: Of the workflow.
    """

    def __init__(self, decide: Decide, context: WorkflowContext) -> None:
        self._owner, self._decide = decide.__self__, torch.no_grad()(decide)  # type: ignore[attr-defined]
        self._static, self._seeds = context.static, context.seeds
        self._made: dict[tuple[Any, int], Callable[..., tuple[Actions, Carry]]] = {}

    def __call__(self, behaviour: Any, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Return actions and the next carry."""
        key = (behaviour, len(is_first))
        if key not in self._made:
            self._made[key] = self._static(self._seeds.rows(self._owner, partial(self._decide, behaviour)))
        return self._made[key](obs, carry, is_first)


class StepsByShape:
    """Calls a function of minibatches through a static one for each shape of their `values`.

    Args:
        function: Takes a minibatch and whatever else has one shape.
        context: Of the workflow.
    """

    def __init__(self, function: Callable[..., Any], context: WorkflowContext) -> None:
        chosen = context.config.get("experiment", {})
        if chosen.get("precision") == "bfloat16":
            raise ConfigError("experiment.precision: PPO's probabilities are no bfloat16 (choices: float32, tf32)")
        if chosen.get("compile") == "compiled":
            raise ConfigError("experiment.compile: PPO is captured, not compiled (choices: auto, eager, captured)")
        self._function, self._static = function, context.static
        self._spare: list[Callable[..., Any]] = [context.static(function)]  # so that the run knows it has one
        self._made: dict[torch.Size, Callable[..., Any]] = {}

    def __call__(self, minibatch: dict[str, Any], *others: Any) -> Any:
        """Return what the function returns."""
        shape = minibatch["values"].shape
        if shape not in self._made:
            self._made[shape] = self._spare.pop() if self._spare else self._static(self._function)
        return self._made[shape](minibatch, *others)
