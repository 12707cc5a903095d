"""Decisions of agents with a state, as static functions: on a GPU, hundreds of small kernels become one graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import Actions, Carry, Observation, WorkflowContext

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
