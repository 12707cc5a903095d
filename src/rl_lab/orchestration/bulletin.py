"""What a learner tells its actors: weights, and beside them where it stands. Both are one version of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.core.workflow import Workflow

_PREFIX = "lab/"  # no module of a workflow has a name with a slash
_TAKEN = f"{_PREFIX}taken/"


@dataclass(frozen=True)
class Bulletin:
    """Where the learner stands."""

    env_steps: int = 0
    phase: int = 0  # its number in `training.phases`
    is_over: bool = False  # no more steps are wanted
    taken: Mapping[str, int] = field(default_factory=dict)  # of each stream, the number of the next step to be taken


def pack(weights: Mapping[str, Tensor], bulletin: Bulletin) -> dict[str, Tensor]:
    """Return both as tensors by name."""
    numbers = {"env_steps": bulletin.env_steps, "phase": bulletin.phase, "is_over": int(bulletin.is_over)}
    told = {f"{_PREFIX}{name}": torch.tensor(number) for name, number in numbers.items()}
    return {**weights, **told, **{f"{_TAKEN}{name}": torch.tensor(seq) for name, seq in bulletin.taken.items()}}


def unpack(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Bulletin]:
    """Return what `pack` was given."""
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(_PREFIX)}
    told = {name.removeprefix(_PREFIX): int(tensor) for name, tensor in tensors.items() if name not in weights}
    taken = {name.removeprefix("taken/"): seq for name, seq in told.items() if name.startswith("taken/")}
    return weights, Bulletin(told["env_steps"], told["phase"], bool(told["is_over"]), taken)


def weights_of(workflow: Workflow, parts: Sequence[str] | None) -> dict[str, Tensor]:
    """Return copies of the tensors that actors get: what the workflow broadcasts, or all of these modules."""
    state: Mapping[str, Tensor] = workflow.broadcast() if parts is None else workflow.state_dict()
    chosen = {name: tensor for name, tensor in state.items() if parts is None or _is_of(name, parts)}
    return {name: tensor.detach().cpu().clone() for name, tensor in chosen.items()}


def check_parts(workflow: Workflow, parts: Sequence[str] | None) -> None:
    """Refuse a module that the workflow does not have."""
    names = list(workflow.state_dict())
    for part in parts or ():
        if not any(_is_of(name, (part,)) for name in names):
            raise ConfigError(unknown_name("transport.publish", part, dict.fromkeys(n.split(".")[0] for n in names)))


def _is_of(name: str, parts: Sequence[str]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)
