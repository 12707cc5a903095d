"""Optimiser state as a checkpoint tree: torch keys it by number, a tree by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rl_lab.core.errors import CheckpointError


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimiser's state with string keys."""
    state = optimizer.state_dict()
    return {**state, "state": {str(index): value for index, value in state["state"].items()}}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, with_options: bool = True) -> None:
    """Restore what `optimizer_state` returned; without options, learning rate and the like stay as configured."""
    moments = {int(index): value for index, value in state["state"].items()}
    options = state["param_groups"] if with_options else optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": options})
    for group in optimizer.param_groups:
        for key, value in group.items():
            if isinstance(value, torch.Tensor):  # a learning rate that is adapted on the device: torch does not move it
                group[key] = value.to(group["params"][0].device)


def load_optimizers(
    optimizers: Mapping[str, torch.optim.Optimizer], states: Mapping[str, Any], *, with_options: bool
) -> None:
    """Give every optimiser its state; one that is missing there is an error that lists those that are."""
    for name, optimizer in optimizers.items():
        if name not in states:
            raise CheckpointError(f"the checkpoint has no optimiser {name!r} (it has: {sorted(states)})")
        given, wanted = (_sizes(each["param_groups"]) for each in (states[name], optimizer.state_dict()))
        if given != wanted:
            raise CheckpointError(f"the checkpoint's optimiser {name!r} has groups of {given} parameters, not {wanted}")
        load_optimizer(optimizer, states[name], with_options=with_options)


def _sizes(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]
