"""Optimiser state as a checkpoint tree: torch keys it by number, a tree by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimiser's state with string keys."""
    state = optimizer.state_dict()
    return {**state, "state": {str(index): value for index, value in state["state"].items()}}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what `optimizer_state` returned."""
    optimizer.load_state_dict({**state, "state": {int(index): value for index, value in state["state"].items()}})
