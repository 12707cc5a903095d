"""From `training.teacher` to a policy that teaches: its run is found, its workflow built and its weights loaded."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rl_lab.config.binding import bind, dims
from rl_lab.config.compose import resolve
from rl_lab.config.device import autocast
from rl_lab.config.freeze import freeze
from rl_lab.config.resume import recompose
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError, LabError
from rl_lab.core.seeding import isolated_rng
from rl_lab.core.spaces import EnvSpec
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.hand_off import load_weights
from rl_lab.orchestration.static_step import Execution, StaticSteps
from rl_lab.orchestration.teacher import Teacher, match_specs, student_spec
from rl_lab.tracking.catalogue import find_run
from rl_lab.tracking.checkpoint import Loaded
from rl_lab.tracking.checkpoint_choice import choose_checkpoint
from rl_lab.tracking.fingerprint import tree_hash
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


def seen_by_student(config: Mapping[str, Any], spec: EnvSpec) -> EnvSpec:
    """Return what a run's own workflow knows of its environment."""
    options = config["training"]["teacher"]
    return spec if options is None else student_spec(spec, options["privileged"])


def load_teacher(
    found: FoundTeacher, spec: EnvSpec, targets: Targets, execution: Execution, device: torch.device
) -> Teacher:
    """Return the frozen policy of a run, checked to fit an environment of this spec; no random stream moves on."""
    with isolated_rng(0):
        learned_in, workflow = _bound(found, targets, execution, device)
    source, state = str(found.loaded.path), found.loaded.state
    reads = match_specs(learned_in, spec, found.options["observation_keys"], source)
    load_weights(workflow, state["workflow"])
    workflow.set_state(state["workflow_state"])
    workflow.requires_grad_(False)
    workflow.eval()
    return Teacher(
        workflow=workflow,
        source=source,
        sha256=tree_hash([state["workflow"], state["workflow_state"]]),
        step=found.loaded.manifest["counters"]["env_steps"],
        explore=found.options["explore"],
        reads=reads,
    )


def _bound(
    found: FoundTeacher, targets: Targets, execution: Execution, device: torch.device
) -> tuple[EnvSpec, Workflow]:
    """Return what the teacher knew of its environment, and its workflow without weights."""
    composed = recompose(found.run)
    known = validate(resolve(composed), targets)
    env: VectorEnv = targets.instantiate("environment", {**known["environment"], "num_envs": 1}, device=device)
    env.close()
    spec = seen_by_student(known, env.spec)  # it may have been a student itself
    config = freeze(validate(resolve(composed, dims(spec)), targets))
    static = StaticSteps(
        "captured" if execution == "captured" else "eager",  # it only acts: not worth compiling
        autocast=autocast(config["experiment"]["precision"], device),
    )
    num_envs = config["environment"].get("num_envs", 1)
    _, workflow = bind(config, targets, spec=spec, num_envs=num_envs, device=device, static=static)
    return spec, workflow
