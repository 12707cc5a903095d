"""From a composed config to a runnable orchestrator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig

from rl_lab.config.compose import resolve
from rl_lab.config.device import autocast, prepare_torch
from rl_lab.config.execution import (
    reject_uncapturable,
    reject_uncompilable,
    reject_unused_choice,
    settle_execution,
)
from rl_lab.config.freeze import Frozen, freeze
from rl_lab.config.sinks import open_sinks
from rl_lab.config.targets import Supply, Targets
from rl_lab.config.validate import read_phases, reject_idle, reject_sizes, reject_unused_buffers, validate
from rl_lab.core.context import Named, Optimizers, WorkflowContext
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError
from rl_lab.core.phase import COLLECT, Phase
from rl_lab.core.seeding import RngStreams, seed_everything
from rl_lab.core.spaces import Box, Discrete, EnvSpec, MultiDiscrete, flat_dim
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.orchestration.phase_scheduler import PhaseScheduler
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.tracker import Tracker


@dataclass(frozen=True)
class Parts:
    """What a run is made of before it has a directory; a config that does not fit leaves nothing on disk."""

    config: Frozen
    composed: DictConfig  # with its interpolations, so that a resume can change what others depend on
    targets: Targets
    env: VectorEnv
    workflow: Workflow
    context: WorkflowContext
    static: StaticSteps


def assemble(composed: DictConfig, targets: Targets) -> Parts:
    """Build environment, components, buffers and workflow; the config is validated first, frozen after the probe."""
    known = validate(resolve(composed), targets)
    device = prepare_torch(known["experiment"])
    rng = RngStreams(known["experiment"]["seed"])
    seed_everything(rng.seed("global"))
    env: VectorEnv = targets.instantiate("environment", known["environment"], device=device)
    config = freeze(validate(resolve(composed, dims(env.spec)), targets))
    phases = read_phases(config, targets)
    is_auto = config["experiment"]["compile"] == "auto"
    static = StaticSteps(
        may_fall_back=is_auto,
        autocast=autocast(config["experiment"]["precision"], device),
    )
    with device:
        context = WorkflowContext(
            config=config,
            device=device,
            spec=env.spec,
            num_envs=env.num_envs,
            components=_build_block("components", config, targets),
            controllers=_build_block("controllers", config, targets),
            optimizers=Optimizers(_build_block("optimizers", config, targets)),
            buffers=_build_block("buffers", config, targets, _for_buffers(rng, device, env, phases)),
            rng=rng,
            static=static,
            fuse=static.fuse,
        )
        workflow: Workflow = targets.instantiate("workflow", {**config["workflow"], **config["algorithm"]})
        workflow.initialize(context)
    for declared in (context.components, context.controllers, context.optimizers):
        declared.reject_unused()
    settle_execution(static, config, phases, device)
    reject_unused_choice(config, static)
    reject_uncompilable(config, static)
    reject_uncapturable(config, static, context.optimizers)
    reject_unused_buffers(phases, context.buffers)
    reject_idle(phases, workflow.hooks(), context.buffers)
    reject_sizes(phases, context)
    _reject_overlap(phases, context)
    return Parts(config, composed, targets, env, workflow, context, static)


def build(parts: Parts, run: RunDirectory, *, quiet: bool = False) -> Orchestrator:
    """Join the parts with the run's directory into the orchestrator that trains them."""
    training, logging, context = parts.config["training"], parts.config["logging"], parts.context
    tracker = Tracker(
        run,
        open_sinks(parts.config, run, quiet=quiet),
        every_steps=logging["every_steps"],
        every_updates=logging["every_updates"],
        frames_per_step=context.spec.action_repeat,
    )
    parts.static.warn = partial(tracker.event, "not_compiled")
    for name, buffer in context.buffers.items():
        buffer.attach(run.path / "buffers" / name)
    phases = read_phases(parts.config, parts.targets)
    return Orchestrator(
        workflow=parts.workflow,
        context=context,
        scheduler=PhaseScheduler(phases, training["total_timesteps"], context.counters),
        collector=Collector(parts.env, context.rng.seed("collect"), tracker.timer, overlap=training["overlap"]),
        evaluator=build_evaluator(parts, training["num_eval_episodes"], explore=training["eval_explore"]),
        tracker=tracker,
        checkpoints=CheckpointStore(run.checkpoints, training["keep_last"], training["keep_best"]),
        cadence=CheckpointCadence(
            training["checkpoint_frequency"], training["checkpoint_updates"], training["checkpoint_minutes"]
        ),
        static=parts.static,
        check_finite=training["check_finite"],
    )


def _reject_overlap(phases: tuple[Phase, ...], context: WorkflowContext) -> None:
    """Refuse steps beside updates where every action must come from the weights that are updated."""
    overlap = context.config["training"]["overlap"]
    for phase in phases if overlap else ():
        if phase.type == "online" and phase.buffer is not None and context.buffers[phase.buffer].is_on_policy:
            raise ConfigError(
                f"training.overlap: {overlap} needs a replay buffer, but phase {phase.name!r} learns from the rollout "
                f"{phase.buffer!r}, whose actions may not be older than the weights (set null)"
            )


def build_evaluator(parts: Parts, num_episodes: int, *, explore: bool) -> Evaluator:
    """Return an evaluator with environments of its own."""
    num_envs = min(parts.config["training"]["eval_num_envs"], num_episodes)
    node = {**parts.config["environment"], "num_envs": num_envs}
    env = parts.targets.instantiate("environment", node, device=parts.context.device)
    return Evaluator(env, num_episodes, parts.context.rng, explore=explore)


def dims(spec: EnvSpec) -> dict[str, Any]:
    """Return `_dims`: the sizes that YAML may ask for."""
    shapes = (
        {name: _shape(leaf) for name, leaf in spec.observation.items()}
        if isinstance(spec.observation, Mapping)
        else _shape(spec.observation)
    )
    return {"observation": flat_dim(spec.observation), "observation_shape": shapes, "action": flat_dim(spec.action)}


def _shape(space: Box | Discrete | MultiDiscrete) -> list[int]:
    return list(space.shape) if isinstance(space, Box) else [flat_dim(space)]


def _for_buffers(rng: RngStreams, device: torch.device, env: VectorEnv, phases: tuple[Phase, ...]) -> Supply:
    """Return what every buffer, and every buffer within one, is given where it takes it."""
    shared = {"device": device, "num_envs": env.num_envs, "spec": env.spec}

    def supply(path: str) -> Mapping[str, Any]:
        names = path.split(".")[1:]
        calls = [call for phase in phases if phase.buffer == names[0] for call in phase.hooks]
        collected = max((call.times for call in calls if call.name == COLLECT), default=0)
        return {**shared, "seed": rng.seed("buffer", *names), "collect_steps": collected}

    return supply


def _build_block(block: str, config: Mapping[str, Any], targets: Targets, *inherited: Supply) -> Named[Any]:
    """Build the nodes of a block by name; one that is null is absent."""
    nodes = {name: node for name, node in config[block].items() if node is not None}
    kind = block.removesuffix("s")
    return Named(kind, {n: targets.instantiate(f"{block}.{n}", node, *inherited) for n, node in nodes.items()})
