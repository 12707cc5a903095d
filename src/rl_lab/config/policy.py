"""From a run on disk to its policy: the workflow of the run's config, with the weights of one of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_lab.config.binding import bind, dims
from rl_lab.config.compose import resolve
from rl_lab.config.device import autocast
from rl_lab.config.freeze import freeze
from rl_lab.config.resume import recompose
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
from rl_lab.core.environment import Actions, Observation, VectorEnv
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

GYMNASIUM = "rl_lab.environments.gymnasium.GymnasiumEnv"  # draws nothing unless render_mode says so


@dataclass(frozen=True)
class TrainedPolicy:
    """A frozen workflow and what it learned in; it acts and learns no more."""

    run: RunDirectory
    loaded: Loaded
    config: Mapping[str, Any]
    env: VectorEnv  # one copy, unless more were asked for
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
    num_envs: int = 1,
    overrides: Sequence[str] = (),
    with_pictures: bool = False,
) -> TrainedPolicy:
    """Return the policy of a checkpoint; no random stream moves on.

    It only acts, which is not worth compiling. Without `precision` it computes in that of its run. With `overrides` of
    the run's config it acts in another environment than it learned in, `with_pictures` in one that draws if it can.
    """
    with isolated_rng(0):
        composed = recompose(run, overrides)
        known = validate(resolve(composed), targets)
        if (num := known["experiment"]["num_seeds"]) > 1:
            raise ConfigError(f"experiment.num_seeds: a run of {num} agents is not one policy (choices: 1)")
        node = {**known["environment"], "num_envs": num_envs}
        node = drawing(node) if with_pictures else node
        env: VectorEnv = targets.instantiate("environment", node, device=device)
        spec = seen_by_student(known, env.spec)  # it may have been a student
        config = freeze(validate(resolve(composed, dims(spec)), targets))
        static = StaticSteps(
            "captured" if execution == "captured" else "eager",
            autocast=autocast(precision or config["experiment"]["precision"], device),
        )
        trained = config["environment"].get("num_envs", 1)
        _, workflow = bind(config, targets, spec=spec, num_envs=trained, device=device, static=static)
    load_weights(workflow, loaded.state["workflow"])
    workflow.set_state(loaded.state["workflow_state"])
    workflow.requires_grad_(False)
    workflow.eval()
    return TrainedPolicy(run, loaded, config, env, spec, workflow)


def drawing(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's config with which it draws pictures, where it has to be told so beforehand."""
    node = dict(environment)
    if node["_target_"] == GYMNASIUM:
        node["env_kwargs"] = {"render_mode": "rgb_array", **(node.get("env_kwargs") or {})}
    return node


class Player:
    """A policy that acts step by step and remembers what it has to from one to the next.

    Args:
        policy: What acts.
        explore: Sample actions as in training.
    """

    def __init__(self, policy: TrainedPolicy, *, explore: bool = False) -> None:
        self._workflow, self._step, self._explore = policy.workflow, policy.step, explore
        self._carry = policy.workflow.initial_carry(policy.env.num_envs)

    def __call__(self, obs: Observation, is_first: Tensor) -> Actions:
        """Return the actions [N]; where an episode begins (`is_first`), what was remembered is forgotten."""
        with torch.no_grad():
            actions, _, self._carry = self._workflow.act(
                obs, self._carry, is_first=is_first, explore=self._explore, step=self._step
            )
        return actions


def seen_by_student(config: Mapping[str, Any], spec: EnvSpec) -> EnvSpec:
    """Return what a run's own workflow knows of its environment."""
    options = config["training"]["teacher"]
    return spec if options is None else student_spec(spec, options["privileged"])
