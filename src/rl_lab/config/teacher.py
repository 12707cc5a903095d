"""From `training.teacher` to a policy that teaches: a run's workflow with its weights, or a script that needs none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rl_lab.config.policy import load_policy
from rl_lab.config.targets import Targets
from rl_lab.core.context import WorkflowContext
from rl_lab.core.errors import ConfigError, LabError
from rl_lab.core.spaces import EnvSpec, leaves_of
from rl_lab.core.workflow import Workflow
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
    """Return the run that `training.teacher` names; None when it names none."""
    options = config["training"]["teacher"]
    if options is None:
        return None
    if (options["run"] is None) == (options["expert"] is None):
        raise ConfigError("training.teacher: give run (a finished run) or expert (a script), one of them")
    if options["run"] is None:
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


def make_expert(options: Mapping[str, Any], spec: EnvSpec, targets: Targets, context: WorkflowContext) -> Teacher:
    """Return the script that `training.teacher.expert` names; it reads the whole observation of the environment."""
    path, node = "training.teacher.expert", options["expert"]
    checked = targets.check(path, node, base=Workflow)
    with context.device:
        workflow: Workflow = targets.instantiate(path, checked)
        workflow.initialize(context)
    return Teacher(
        workflow=workflow,
        source=node["_target_"],
        sha256=hashlib.sha256(json.dumps(checked, sort_keys=True, default=str).encode()).hexdigest(),
        step=0,
        explore=options["explore"],
        reads={name: name for name in leaves_of(spec.observation)},
    )
