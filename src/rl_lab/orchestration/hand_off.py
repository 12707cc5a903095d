"""Weights that go from the workflow of one run to that of another, whole or in named parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from torch import Tensor

from rl_lab.core.errors import CheckpointError, ConfigError, unknown_name
from rl_lab.core.workflow import Workflow

ResumeMode = Literal["exact", "fork", "warm_start", "warm_start_optimizer"]
Parts = Sequence[str] | None  # modules by name; None: all
NAMED = 3  # tensors that an error names


def load_weights(workflow: Workflow, weights: Mapping[str, Tensor], parts: Parts = None) -> None:
    """Take all weights of a checkpoint, or those of named parts; both must have the same ones."""
    with workflow.whole():
        workflow.load_state_dict(fitting(workflow, weights, parts), strict=parts is None)


def whole_weights(workflow: Workflow) -> dict[str, Tensor]:
    """Return all weights, in all ranks."""
    with workflow.whole():
        return dict(workflow.state_dict())


def fitting(workflow: Workflow, weights: Mapping[str, Tensor], parts: Sequence[str] | None) -> Mapping[str, Tensor]:
    """Return what `load_weights` takes, or raise where it does not fit."""
    if parts is not None:
        return _fitting_parts(workflow, weights, parts, "training.resume_parts")
    _reject_differences(workflow.state_dict(), weights, "the checkpoint's networks do not fit this config")
    return weights


def load_broadcast(workflow: Workflow, weights: Mapping[str, Tensor]) -> None:
    """Take what the same workflow elsewhere has broadcast."""
    _reject_differences(workflow.broadcast(), weights, "the learner's weights do not fit this config")
    workflow.receive(weights)


def load_parts(
    workflow: Workflow, weights: Mapping[str, Tensor], parts: Sequence[str], key: str = "training.resume_parts"
) -> None:
    """Take the weights of these modules, such as a world model, and leave the others as they are."""
    workflow.load_state_dict(_fitting_parts(workflow, weights, parts, key), strict=False)


def _fitting_parts(
    workflow: Workflow, weights: Mapping[str, Tensor], parts: Sequence[str], key: str
) -> dict[str, Tensor]:
    here: Mapping[str, Tensor] = workflow.state_dict()
    taken: dict[str, Tensor] = {}
    for part in parts:
        own, given = _of_part(here, part), _of_part(weights, part)
        if not own:
            names = dict.fromkeys(name.split(".")[0] for name in here)
            raise ConfigError(unknown_name(key, part, names))
        _reject_differences(own, given, f"{key}: {part!r} of the checkpoint does not fit")
        taken |= given
    return taken


def _of_part(weights: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith(f"{part}.")}


def _reject_differences(here: Mapping[str, Tensor], there: Mapping[str, Tensor], what: str) -> None:
    if wrong := list(_differences(here, there)):
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise CheckpointError(f"{what}: {'; '.join(wrong[:NAMED])}{more}")


def _differences(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield what keeps the tensors of a checkpoint from taking the place of those here."""
    for name, tensor in here.items():
        if name not in there:
            yield f"{name} is not in it"
        elif tensor.shape != there[name].shape:
            yield f"{name} is {list(there[name].shape)} there and {list(tensor.shape)} here"
    yield from (f"{name} is only in it" for name in there if name not in here)
