"""From `training.teacher` to a policy that teaches: its run is found, its workflow built and its weights loaded."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rl_lab.config.policy import load_policy
from rl_lab.config.targets import Targets
from rl_lab.core.errors import ConfigError, LabError
from rl_lab.core.spaces import EnvSpec
from rl_lab.orchestration.static_step import Execution
from rl_lab.orchestration.teacher import Teacher, match_specs
from rl_lab.tracking.catalogue import find_run
from rl_lab.tracking.checkpoint import Loaded
from rl_lab.tracking.checkpoint_choice import choose_checkpoint
from rl_lab.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class FoundTeacher:
    """A run that can teach, and which of its checkpoints does."""

    options: Mapping[str, Any]  # training.teacher
    run: RunDirectory
    loaded: Loaded

    def pinned(self, composed: DictConfig) -> DictConfig:
        """Return the config with this very checkpoint in it: a resume must not find a newer one."""
        config = deepcopy(composed)
        OmegaConf.update(config, "training.teacher.run", str(self.run.path), force_add=True)
        OmegaConf.update(config, "training.teacher.checkpoint", self.loaded.path.name, force_add=True)
        return config


def find_teacher(config: Mapping[str, Any]) -> FoundTeacher | None:
    """Return the run that `training.teacher` names; None when there is none."""
    options = config["training"]["teacher"]
    if options is None:
        return None
    try:
        run = find_run(config["experiment"]["root"], options["run"])
        return FoundTeacher(options, run, choose_checkpoint(run, options["checkpoint"]))
    except LabError as error:
        raise ConfigError(f"training.teacher: {error}") from error


def load_teacher(
    found: FoundTeacher, spec: EnvSpec, targets: Targets, execution: Execution, device: torch.device
) -> Teacher:
    """Return the frozen policy of a run, checked to fit an environment of this spec; no random stream moves on."""
    learned = load_policy(found.run, found.loaded, targets, device, execution=execution)
    learned.env.close()
    source = str(found.loaded.path)
    return Teacher(
        workflow=learned.workflow,
        source=source,
        sha256=learned.sha256,
        step=learned.step,
        explore=found.options["explore"],
        reads=match_specs(learned.spec, spec, found.options["observation_keys"], source),
    )
