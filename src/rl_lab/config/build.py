"""From a composed config to a runnable orchestrator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from rl_lab.config.agents import bind_agents, of_all_agents, reject_seeds
from rl_lab.config.alerts import reject_roll_backs
from rl_lab.config.binding import dims
from rl_lab.config.compose import resolve
from rl_lab.config.device import autocast, prepare_torch
from rl_lab.config.execution import (
    reject_compiled_ranks,
    reject_uncapturable,
    reject_uncompilable,
    reject_unused_choice,
    settle_execution,
)
from rl_lab.config.freeze import Frozen, freeze
from rl_lab.config.monitoring import attend, open_alarms
from rl_lab.config.operator import make_operator
from rl_lab.config.parallel import part_ways, reject_ranks, reject_sharded
from rl_lab.config.policy import drawing, seen_by_student
from rl_lab.config.remote import (
    example_step,
    is_remote,
    is_served,
    make_actor,
    make_learner,
    reject_remote,
    served_policy,
    transport_of,
)
from rl_lab.config.sinks import open_sinks
from rl_lab.config.targets import Targets
from rl_lab.config.teacher import find_teacher, load_teacher, make_expert
from rl_lab.config.validate import (
    read_phases,
    reject_batches,
    reject_idle,
    reject_sizes,
    reject_unused_buffers,
    validate,
)
from rl_lab.core.context import WorkflowContext
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError
from rl_lab.core.operator import Operator, Station
from rl_lab.core.phase import Phase
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.core.seeding import RngStreams, seed_everything
from rl_lab.core.workflow import Workflow
from rl_lab.distributed.transport.open import open_sender
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.films import Films
from rl_lab.orchestration.interventions import Interventions, journal_of
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.orchestration.phase_scheduler import PhaseScheduler
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.orchestration.supervision import Companions, Supervision
from rl_lab.orchestration.teacher import Mixture, Teacher, check_shares
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.follower import Follower
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.tracker import Tracker

RANDOM = "rl_lab.workflows.random_policy.RandomPolicy"  # who is played against, where gains are asked for


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
    operator: Operator | None = None


def assemble(
    composed: DictConfig,
    targets: Targets,
    *,
    with_teacher: bool = True,
    ranks: Ranks = ALONE,
    is_actor: bool = False,
) -> Parts:
    """Build environment, components, buffers and workflow; the config is validated first, frozen after the probe.

    What is only evaluated needs no teacher, though it had one, and no other ranks. Where actors collect, the operator
    is beside an actor (`is_actor`).
    """
    known = validate(resolve(composed), targets)
    reject_seeds(known, targets)
    reject_ranks(known, targets, ranks)
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
    context, workflow = bind_agents(
        config, targets, spec=spec, num_envs=env.num_envs, device=device, static=static, ranks=ranks
    )
    part_ways(workflow, context)
    for declared in (context.components, context.controllers, context.optimizers):
        declared.reject_unused()
    settle_execution(static, config, phases, device)
    reject_compiled_ranks(config, static, ranks)
    reject_sharded(config, phases, workflow, static)
    reject_unused_choice(config, static)
    reject_uncompilable(config, static)
    reject_uncapturable(config, static, context.optimizers)
    reject_unused_buffers(phases, context.buffers)
    reject_idle(phases, workflow.hooks(), context.buffers)
    reject_batches(phases, workflow, context)
    reject_sizes(phases, context)
    _reject_overlap(phases, context)
    check_shares(phases, workflow, context.buffers, has_teacher=config["training"]["teacher"] is not None)
    options = config["training"]["teacher"] if with_teacher else None
    teacher = None if found is None else load_teacher(found, env.spec, targets, static.execution, device)
    if options is not None and options["expert"] is not None:
        teacher = make_expert(options, env.spec, targets, context)
    reject_remote(config, phases, workflow, context.buffers)
    reject_roll_backs(config, env.spec)
    station = Station(env, context.counters, config["training"]["total_timesteps"])
    make = partial(make_operator, config, phases, workflow, context.buffers, targets, station)
    operator = make(is_there=is_actor or not is_remote(config)) if with_teacher else None
    return Parts(config, composed, targets, env, workflow, context, static, teacher, operator)


def build(parts: Parts, run: RunDirectory, *, quiet: bool = False) -> Orchestrator:
    """Join the parts with the run's directory into the orchestrator that trains them."""
    training, logging, context = parts.config["training"], parts.config["logging"], parts.context
    ranks, debug = context.ranks, parts.config["experiment"]["debug"]
    alarms = open_alarms(parts.config, run) if ranks.is_first else None
    sinks = open_sinks(parts.config, run, quiet=quiet) if ranks.is_first else []
    tracker = (Tracker if ranks.is_first else Follower)(
        run,
        sinks if alarms is None else [*sinks, alarms],
        every_steps=logging["every_steps"],
        every_updates=logging["every_updates"],
        frames_per_step=context.spec.action_repeat,
        ranks=ranks,
        hash_chain=logging["hash_chain"],
    )
    parts.static.warn = partial(tracker.event, "not_compiled")
    for name, buffer in context.buffers.items():
        buffer.attach(run.path / "buffers" / ranks.folder / name)
    phases = read_phases(parts.config, parts.targets)
    made: dict[str, Any] = {
        "workflow": parts.workflow,
        "context": context,
        "scheduler": PhaseScheduler(phases, training["total_timesteps"], context.counters),
        "evaluator": build_evaluator(parts, training["num_eval_episodes"], explore=training["eval_explore"]),
        "tracker": tracker,
        "checkpoints": CheckpointStore(run.checkpoints, training["keep_last"], training["keep_best"], ranks),
        "cadence": CheckpointCadence(
            training["checkpoint_frequency"], training["checkpoint_updates"], training["checkpoint_minutes"]
        ),
        "static": parts.static,
        "check_finite": training["check_finite"],
        "films": _films(parts, run),
    }
    for env in (parts.env, made["evaluator"].env):
        env.attach(run.crash / ranks.folder)
    if is_remote(parts.config):
        return attend(_build_learner(parts, run, made), alarms, debug=debug)
    collector = Collector(
        parts.env,
        context.rng.seed("collect"),
        tracker.timer,
        overlap=training["overlap"],
        num_seeds=context.seeds.num,
        num_ranks=ranks.size,
    )
    mixture = watched(parts, journal_of(tracker))
    return attend(Orchestrator(**made, collector=collector, mixture=mixture), alarms, debug=debug)


def _build_learner(parts: Parts, run: RunDirectory, made: dict[str, Any]) -> Orchestrator:
    """Return the orchestrator of a run whose data comes from actors; in one process, with an actor of its own."""
    is_alone = parts.config["transport"]["kind"] == "memory"
    actor = assemble(parts.composed, parts.targets, is_actor=True) if is_alone else None
    options, spec = parts.config["transport"], parts.context.spec
    policy = (actor or parts).workflow
    if is_served(options):
        policy = served_policy(spec, options, imitates=parts.workflow.imitates)
    mixture = watched(replace(actor or parts, workflow=policy), journal_of(made["tracker"]))
    example = example_step(parts.env.spec, parts.config, made["scheduler"].phases, policy, mixture)
    learner, receiver = make_learner(parts.env, parts.config, run, made, example)
    if actor is not None:
        actor.env.attach(run.crash)
        sender = open_sender(transport_of(actor.config, run.path), example, receiver)
        phases = made["scheduler"].phases
        learner.remote.actor = make_actor(actor.config, actor.env, policy, actor.context, phases, mixture, sender)
    return learner


def watched(parts: Parts, journal: Interventions) -> Companions | None:
    """Return the workflow beside its teacher and under the eyes of its operator, where it has them."""
    mixture = _mixture(parts)
    if parts.operator is None:
        return mixture
    return Supervision(parts.workflow, parts.operator, journal, mixture)


def _mixture(parts: Parts) -> Mixture | None:
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


def _films(parts: Parts, run: RunDirectory) -> Films | None:
    """Return what films the policy, if that is asked for; one copy of its environment for each agent."""
    training, context = parts.config["training"], parts.context
    if training["video_frequency"] is None or not context.ranks.is_first:
        return None
    node = drawing(of_all_agents(parts.config, 1))

    def make_env() -> VectorEnv:
        env: VectorEnv = parts.targets.instantiate("environment", node, device=context.device)
        env.attach(run.crash)
        return env

    return Films(
        make_env,
        run.media,
        context.rng,
        every=training["video_frequency"],
        length=training["video_length"],
        explore=training["eval_explore"],
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
    rival: Workflow | None = None
    if parts.config["training"]["eval_gain"]:
        rival = parts.targets.instantiate("training.eval_gain", {"_target_": RANDOM})
        rival.initialize(context)
    return Evaluator(
        env,
        num_episodes,
        context.rng,
        explore=explore,
        num_seeds=context.seeds.num,
        ranks=context.ranks,
        rival=rival,
    )
