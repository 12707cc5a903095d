"""From `training.operator` to the one who watches while data is collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_lab.config.freeze import thaw
from rl_lab.config.targets import Targets
from rl_lab.core.buffer import Buffer
from rl_lab.core.errors import ConfigError
from rl_lab.core.operator import Bystander, Operator, Station
from rl_lab.core.phase import Phase
from rl_lab.core.workflow import Workflow


def make_operator(
    config: Mapping[str, Any],
    phases: Sequence[Phase],
    workflow: Workflow,
    buffers: Mapping[str, Buffer],
    targets: Targets,
    station: Station,
    *,
    is_there: bool = True,
) -> Operator | None:
    """Return the operator that a config names, if it names one; refuse it where nobody else may act.

    One who is elsewhere, beside an actor, is checked and not made.
    """
    path, node = "training.operator", thaw(config["training"]["operator"])
    if node is None:
        return None
    if config["experiment"]["num_seeds"] > 1:
        raise ConfigError(f"experiment.num_seeds: several agents cannot have {path} (one can: 1)")
    for phase in phases:
        if phase.type == "online" and phase.buffer is not None and buffers[phase.buffer].is_on_policy:
            raise ConfigError(
                f"{path}: {type(workflow).__name__} learns from rollouts of its own in phase {phase.name!r}, where no "
                "operator may act"
            )
    checked = targets.check(path, node, base=Operator)
    kind: Any = targets.load(path, node, Operator)
    if kind.is_live and config["training"]["overlap"] is not None:
        raise ConfigError(f"training.overlap: a person ({path}) acts now, not one step ahead (set null)")
    if not is_there:
        return Bystander(is_live=kind.is_live)
    with station.env.device:
        operator: Operator = targets.instantiate(path, checked)
    try:
        operator.bind(station)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return operator
