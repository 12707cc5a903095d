"""From a run on disk to its policy: the workflow of the run's config, with the weights of one of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rl_lab.config.binding import bind, dims
from rl_lab.config.compose import resolve
from rl_lab.config.device import autocast
from rl_lab.config.freeze import freeze
from rl_lab.config.resume import recompose
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError
from rl_lab.core.seeding import isolated_rng
from rl_lab.core.spaces import EnvSpec
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.hand_off import load_weights
from rl_lab.orchestration.static_step import Execution, StaticSteps
from rl_lab.orchestration.teacher import student_spec
from rl_lab.tracking.checkpoint import Loaded
from rl_lab.tracking.fingerprint import tree_hash
from rl_lab.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class TrainedPolicy:
    """A frozen workflow and what it learned in; it acts and learns no more."""

    run: RunDirectory
    loaded: Loaded
    config: Mapping[str, Any]
    env: VectorEnv  # one copy
    spec: EnvSpec  # what the workflow knows of it
    workflow: Workflow

    @property
    def sha256(self) -> str:
        """Return the hash of all that the workflow learned."""
        return tree_hash([self.loaded.state["workflow"], self.loaded.state["workflow_state"]])

    @property
    def step(self) -> int:
        """Return the env steps that it learned for."""
        return int(self.loaded.manifest["counters"]["env_steps"])


def load_policy(
    run: RunDirectory,
    loaded: Loaded,
    targets: Targets,
    device: torch.device,
    *,
    execution: Execution = "eager",
    precision: str | None = None,
) -> TrainedPolicy:
    """Return the policy of a checkpoint; no random stream moves on.

    It only acts, which is not worth compiling. Without `precision` it computes in that of its run.
    """
    with isolated_rng(0):
        composed = recompose(run)
        known = validate(resolve(composed), targets)
        if (num := known["experiment"]["num_seeds"]) > 1:
            raise ConfigError(f"experiment.num_seeds: a run of {num} agents is not one policy (choices: 1)")
        env: VectorEnv = targets.instantiate("environment", {**known["environment"], "num_envs": 1}, device=device)
        spec = seen_by_student(known, env.spec)  # it may have been a student
        config = freeze(validate(resolve(composed, dims(spec)), targets))
        static = StaticSteps(
            "captured" if execution == "captured" else "eager",
            autocast=autocast(precision or config["experiment"]["precision"], device),
        )
        num_envs = config["environment"].get("num_envs", 1)
        _, workflow = bind(config, targets, spec=spec, num_envs=num_envs, device=device, static=static)
    load_weights(workflow, loaded.state["workflow"])
    workflow.set_state(loaded.state["workflow_state"])
    workflow.requires_grad_(False)
    workflow.eval()
    return TrainedPolicy(run, loaded, config, env, spec, workflow)


def seen_by_student(config: Mapping[str, Any], spec: EnvSpec) -> EnvSpec:
    """Return what a run's own workflow knows of its environment."""
    options = config["training"]["teacher"]
    return spec if options is None else student_spec(spec, options["privileged"])
