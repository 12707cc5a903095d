"""From `experiment.compile` to how the updates of this run are executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rl_lab.core.errors import ConfigError
from rl_lab.core.phase import COLLECT, Phase
from rl_lab.orchestration.static_step import Execution, StaticSteps, choose_execution

COMPILABLE = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.adam.Adam", "torch.optim.adamw.AdamW")


def execution(config: Mapping[str, Any], phases: Iterable[Phase], device: torch.device) -> Execution:
    """Return how static functions run."""
    optimizers = (node for node in config["optimizers"].values() if node is not None)
    is_compilable = all(
        node["_target_"] in COMPILABLE and not node.get("amsgrad") and not node.get("maximize") for node in optimizers
    )
    num_envs = config["environment"].get("num_envs", 1)
    updates = sum(_updates(phase, num_envs) for phase in phases)
    return choose_execution(config["experiment"]["compile"], device, num_updates=updates, is_compilable=is_compilable)


def _updates(phase: Phase, num_envs: int) -> float:
    """Return about how many updates a phase will do."""
    if phase.unit != "steps":
        return phase.duration
    collected = sum(call.times for call in phase.hooks if call.name == COLLECT) * num_envs
    per_cycle = sum(call.times for call in phase.hooks if call.is_update)
    ratio = per_cycle / max(1, collected) if phase.train_ratio is None else phase.train_ratio
    return phase.duration * ratio


def reject_unused_choice(config: Mapping[str, Any], static: StaticSteps) -> None:
    """Raise when a run asks for compiled or captured updates of a workflow that has none; what has none is eager."""
    name = config["experiment"]["compile"]
    if static.num_functions:
        return
    static.execution = "eager"
    if name not in ("auto", "eager"):
        raise ConfigError(f"experiment.compile: this workflow runs eager, not {name} (choices: auto, eager)")
