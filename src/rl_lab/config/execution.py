"""From `experiment.compile` to how the updates of this run are executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.errors import ConfigError
from rl_lab.core.phase import COLLECT, Phase
from rl_lab.core.ranks import Ranks
from rl_lab.orchestration.static_step import StaticSteps, choose_execution

COMPILABLE = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.adam.Adam", "torch.optim.adamw.AdamW")


def settle_execution(
    static: StaticSteps, config: Mapping[str, Any], phases: Iterable[Phase], device: torch.device
) -> None:
    """Decide how the static functions that a workflow has made will run."""
    num_envs = config["environment"].get("num_envs", 1)
    updates = sum(_updates(phase, num_envs) for phase in phases)
    static.execution = choose_execution(
        config["experiment"]["compile"], device, num_updates=updates, has_parts=static.num_parts > 0
    )


def reject_compiled_ranks(config: Mapping[str, Any], static: StaticSteps, ranks: Ranks) -> None:
    """Raise when updates shall be compiled that speak with other processes; `auto` then runs eager."""
    if static.execution != "compiled" or ranks.size == 1:
        return
    static.execution = "eager"
    if config["experiment"]["compile"] != "auto":
        raise ConfigError(
            f"experiment.compile: compiled updates cannot join the gradients of {ranks.size} processes "
            "(choices: auto, eager; captured on GPUs)"
        )


def _updates(phase: Phase, num_envs: int) -> float:
    """Return about how many updates a phase will do."""
    if phase.unit != "steps":
        return phase.duration
    collected = sum(call.times for call in phase.hooks if call.name == COLLECT) * num_envs
    per_cycle = sum(call.times for call in phase.hooks if call.is_update)
    ratio = per_cycle / max(1, collected) if phase.train_ratio is None else phase.train_ratio
    return phase.duration * ratio


def reject_unused_choice(config: Mapping[str, Any], static: StaticSteps) -> None:
    """Raise when a run asks for another way or precision of static functions than a workflow without any has."""
    name, precision = config["experiment"]["compile"], config["experiment"]["precision"]
    if static.num_functions:
        return
    static.execution = "eager"
    if precision == "bfloat16":
        raise ConfigError("experiment.precision: this workflow has nothing to do in bfloat16 (choices: float32, tf32)")
    if name not in ("auto", "eager"):
        raise ConfigError(f"experiment.compile: this workflow runs eager, not {name} (choices: auto, eager)")


def reject_uncompilable(config: Mapping[str, Any], static: StaticSteps) -> None:
    """Raise when whole updates shall be compiled whose optimiser cannot be; `auto` then runs eager."""
    optimizers = (node for node in config["optimizers"].values() if node is not None)
    is_compilable = all(
        node["_target_"] in COMPILABLE and not node.get("amsgrad") and not node.get("maximize") for node in optimizers
    )
    if static.execution != "compiled" or static.num_parts or is_compilable:
        return
    static.execution = "eager"
    if config["experiment"]["compile"] != "auto":
        raise ConfigError("experiment.compile: compiled needs optimizers Adam or AdamW (choices: auto, eager)")


def reject_uncapturable(
    config: Mapping[str, Any], static: StaticSteps, optimizers: Mapping[str, torch.optim.Optimizer]
) -> None:
    """Raise when an update shall be captured whose optimiser counts on the host; `auto` then runs eager."""
    wrong = [name for name, optimizer in optimizers.items() if not _is_capturable(optimizer)]
    if static.execution != "captured" or not wrong:
        return
    static.execution = "eager"
    if config["experiment"]["compile"] != "auto":
        kind = type(optimizers[wrong[0]]).__name__
        raise ConfigError(
            f"experiment.compile: captured needs optimizers that know `capturable`, such as Adam, and "
            f"optimizers.{wrong[0]} is {kind} (choices: auto, eager)"
        )


def _is_capturable(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a replay does all that a step does: the optimiser counts nothing on the host.

    SGD counts nothing at all, but reads a rate that is a tensor. One that does not know the option must have all its
    state on the device from the start.
    """
    if isinstance(optimizer, torch.optim.SGD):
        return not any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups)
    if all("capturable" in group for group in optimizer.param_groups):
        return True
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return all(p in optimizer.state and _is_beside(p, optimizer.state[p].values()) for p in parameters)


def _is_beside(parameter: Tensor, values: Iterable[Any]) -> bool:
    return all(isinstance(value, Tensor) and value.device == parameter.device for value in values)
