"""An actor as a process of its own: what it is made of, and its end of the transport."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rl_lab.config.binding import dims
from rl_lab.config.build import Parts, assemble, watched
from rl_lab.config.compose import resolve
from rl_lab.config.device import prepare_torch
from rl_lab.config.freeze import freeze
from rl_lab.config.operator import make_operator
from rl_lab.config.policy import seen_by_student
from rl_lab.config.remote import example_step, is_served, make_actor, served_policy, transport_of
from rl_lab.config.targets import Targets
from rl_lab.config.teacher import find_teacher, load_teacher, make_expert
from rl_lab.config.validate import read_phases, validate
from rl_lab.core.context import Named, Optimizers, WorkflowContext
from rl_lab.core.environment import VectorEnv
from rl_lab.core.operator import Station
from rl_lab.core.seeding import RngStreams, seed_everything
from rl_lab.core.workflow import Workflow
from rl_lab.distributed.transport.open import open_sender
from rl_lab.orchestration.actor import Actor
from rl_lab.orchestration.interventions import Interventions
from rl_lab.orchestration.serving import ServedPolicy
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.tracking.atomic import replace_file

logger = logging.getLogger(__name__)


def assemble_actor(composed: DictConfig, targets: Targets) -> Parts:
    """Build what an actor needs; where the learner decides, nothing of the policy."""
    known = validate(resolve(composed), targets)
    if not is_served(known["transport"]):
        return assemble(composed, targets, is_actor=True)
    device, found = prepare_torch(known["experiment"]), find_teacher(known)
    env: VectorEnv = targets.instantiate("environment", known["environment"], device=device)
    spec = seen_by_student(known, env.spec)
    config = freeze(validate(resolve(composed, dims(spec)), targets))
    learned: Any = targets.load("workflow", config["workflow"], Workflow)
    workflow = served_policy(spec, config["transport"], imitates=learned.imitates)
    empty: dict[str, Any] = {name: Named(name, {}) for name in ("components", "controllers", "buffers")}
    empty["optimizers"] = Optimizers(Named("optimizer", {}))
    rng = RngStreams(config["experiment"]["seed"])
    context = WorkflowContext(config=config, device=device, spec=spec, num_envs=env.num_envs, rng=rng, **empty)
    teacher = None if found is None else load_teacher(found, env.spec, targets, "eager", device)
    if (options := config["training"]["teacher"]) is not None and options["expert"] is not None:
        teacher = make_expert(options, env.spec, targets, context)
    station = Station(env, context.counters, config["training"]["total_timesteps"])
    operator = make_operator(config, (), workflow, {}, targets, station)
    return Parts(config, composed, targets, env, workflow, context, StaticSteps(), teacher, operator)


def build_actor(parts: Parts, home: Path) -> Actor:
    """Return an actor; its files lie in `home`, the learner's run, unless the config says where."""
    config, workflow, options = parts.config, parts.workflow, transport_of(parts.config, home, is_actor=True)
    mixture = watched(parts, _journal(Path(options.directory)))
    phases, rng = read_phases(config, parts.targets), parts.context.rng
    example = example_step(parts.env.spec, config, phases, workflow, mixture)
    _warn_without_limits(parts.env)
    sender = open_sender(options, example)
    if isinstance(workflow, ServedPolicy):
        workflow.connect(sender)
    begun = sender.status().next_seq
    seed_everything(rng.seed("actor", config["transport"]["actor"], "act", begun))  # not as before, nor as others
    return make_actor(config, parts.env, workflow, parts.context, phases, mixture, sender, begun)


def _warn_without_limits(env: VectorEnv) -> None:
    """Say so where nothing but the policy stands between a mistake and a robot."""
    if "limits" not in env.describe():
        logger.warning(
            "%s is no robot cell: no limits of speed and pose are applied to its actions, and no watchdog holds it "
            "when they are stale (a robot needs a Driver)",
            env.spec.id,
        )


def _journal(directory: Path) -> Interventions:
    """Return where an actor notes who took over and when: beside its spool, as the run's directory is the learner's."""

    def event(kind: str, **fields: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "events.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, **fields}) + "\n")
        logger.info("%s: %s", kind, fields.get("message") or fields)

    def introduce(names: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / "operators.json", json.dumps(dict(names)))

    return Interventions(event, introduce)
