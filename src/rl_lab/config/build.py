"""From a composed config to a runnable orchestrator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from omegaconf import DictConfig

from rl_lab.config.agents import bind_agents, of_all_agents, reject_seeds
from rl_lab.config.binding import dims
from rl_lab.config.compose import resolve
from rl_lab.config.device import autocast, prepare_torch
from rl_lab.config.execution import (
    reject_uncapturable,
    reject_uncompilable,
    reject_unused_choice,
    settle_execution,
)
from rl_lab.config.freeze import Frozen, freeze
from rl_lab.config.policy import seen_by_student
from rl_lab.config.sinks import open_sinks
from rl_lab.config.targets import Targets
from rl_lab.config.teacher import find_teacher, load_teacher
from rl_lab.config.validate import read_phases, reject_idle, reject_sizes, reject_unused_buffers, validate
from rl_lab.core.context import WorkflowContext
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError
from rl_lab.core.phase import Phase
from rl_lab.core.seeding import RngStreams, seed_everything
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.orchestration.phase_scheduler import PhaseScheduler
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.orchestration.teacher import Mixture, Teacher, check_shares
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
    teacher: Teacher | None = None


def assemble(composed: DictConfig, targets: Targets, *, with_teacher: bool = True) -> Parts:
    """Build environment, components, buffers and workflow; the config is validated first, frozen after the probe.

    What is only evaluated needs no teacher, though it had one.
    """
    known = validate(resolve(composed), targets)
    reject_seeds(known, targets)
    found = find_teacher(known) if with_teacher else None
    composed = composed if found is None else found.pinned(composed)
    device = prepare_torch(known["experiment"])
    seed_everything(RngStreams(known["experiment"]["seed"]).seed("global"))
    env: VectorEnv = targets.instantiate("environment", of_all_agents(known), device=device)
    spec = seen_by_student(known, env.spec)
    config = freeze(validate(resolve(composed, dims(spec)), targets))
    phases = read_phases(config, targets)
    is_auto = config["experiment"]["compile"] == "auto"
    static = StaticSteps(
        may_fall_back=is_auto,
        autocast=autocast(config["experiment"]["precision"], device),
    )
    context, workflow = bind_agents(config, targets, spec=spec, num_envs=env.num_envs, device=device, static=static)
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
    check_shares(phases, workflow, context.buffers, has_teacher=config["training"]["teacher"] is not None)
    teacher = None if found is None else load_teacher(found, env.spec, targets, static.execution, device)
    return Parts(config, composed, targets, env, workflow, context, static, teacher)


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
        collector=Collector(
            parts.env,
            context.rng.seed("collect"),
            tracker.timer,
            overlap=training["overlap"],
            num_seeds=context.seeds.num,
        ),
        evaluator=build_evaluator(parts, training["num_eval_episodes"], explore=training["eval_explore"]),
        tracker=tracker,
        checkpoints=CheckpointStore(run.checkpoints, training["keep_last"], training["keep_best"]),
        cadence=CheckpointCadence(
            training["checkpoint_frequency"], training["checkpoint_updates"], training["checkpoint_minutes"]
        ),
        static=parts.static,
        check_finite=training["check_finite"],
        mixture=_mixture(parts),
    )


def _mixture(parts: Parts) -> Mixture | None:
    """Return the student beside its teacher, if it has one."""
    if parts.teacher is None:
        return None
    options = parts.config["training"]["teacher"]
    return Mixture(
        parts.workflow,
        parts.teacher,
        parts.env.device,
        per_episode=options["mix"] == "episode",
        privileged=options["privileged"],
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
    node, context = of_all_agents(parts.config, num_envs), parts.context
    env = parts.targets.instantiate("environment", node, device=context.device)
    return Evaluator(env, num_episodes, context.rng, explore=explore, num_seeds=context.seeds.num)
