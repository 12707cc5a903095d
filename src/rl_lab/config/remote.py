"""From the `transport` block to a learner and its actors: what fits, what a step looks like, where files lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.config.socket_path import socket_of
from rl_lab.core.buffer import Buffer
from rl_lab.core.context import WorkflowContext
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError
from rl_lab.core.phase import Phase
from rl_lab.core.seeding import isolated_rng
from rl_lab.core.spaces import Box, EnvSpec, Leaf, MultiDiscrete, Space
from rl_lab.core.trees import Tree, tree_leaves, tree_map
from rl_lab.core.workflow import CollectResult, Workflow
from rl_lab.distributed.transport.interface import Receiver, Sender
from rl_lab.distributed.transport.limits import Limits
from rl_lab.distributed.transport.open import TransportConfig, open_receiver
from rl_lab.distributed.transport.security import check_address, check_free, read_keys
from rl_lab.orchestration.actor import Actor, sent_step
from rl_lab.orchestration.bulletin import check_parts
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.interventions import journal_of
from rl_lab.orchestration.learner import Cursors, Learner
from rl_lab.orchestration.remote_collector import RemoteCollector
from rl_lab.orchestration.serving import Inference, ServedPolicy
from rl_lab.orchestration.streams import ActorStreams
from rl_lab.orchestration.supervision import Companions, Supervision
from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.run_directory import RunDirectory

FILES = "transport"  # of the learner, in the run's directory
ADDRESS = "address"  # where it listens: a port that the system chose is known only then


def is_remote(config: Mapping[str, Any]) -> bool:
    """Return whether actors collect for this run."""
    return config["transport"]["kind"] is not None


def reject_remote(
    config: Mapping[str, Any], phases: Sequence[Phase], workflow: Workflow, buffers: Mapping[str, Buffer]
) -> None:
    """Refuse actors where they cannot collect what the run learns from."""
    if not is_remote(config):
        return
    kind, name = f"transport.kind={config['transport']['kind']}", type(workflow).__name__
    ones = {"environment.num_envs": config["environment"].get("num_envs", 1)}
    ones |= {f"experiment.{key}": config["experiment"][key] for key in ("num_seeds", "devices")}
    for key, number in ones.items():
        if number != 1:
            raise ConfigError(f"{key}: an actor is one robot, not {number} ({kind} needs 1; more: transport.actors)")
    if config["training"]["overlap"] is not None:
        raise ConfigError(f"training.overlap: with {kind} actors step while the learner learns anyway (set null)")
    if type(workflow).collect_step is not Workflow.collect_step:
        raise ConfigError(f"{kind}: {name} collects in a way of its own, which actors do not know")
    for phase in phases:
        if phase.type == "online" and phase.buffer is not None and buffers[phase.buffer].is_on_policy:
            raise ConfigError(
                f"{kind}: {name} learns from rollouts of its own in phase {phase.name!r}, and steps of actors come "
                "from older weights (workflows with a replay buffer or demonstrations can)"
            )
    check_parts(workflow, config["transport"]["publish"])
    _reject_served(config["transport"], workflow)
    transport_of(config, Path())  # what is missing is missed now, and not when a directory has been made


def reject_taken_port(config: Mapping[str, Any]) -> None:
    """Refuse an address on which the learner cannot listen, before there is a directory of a run that cannot begin."""
    if config["transport"]["kind"] == "network":
        options = transport_of(config, Path())
        if options.certificate is not None:
            read_keys(Path(options.certificate), "learner")
        check_free(check_address(options.address, is_secured=options.certificate is not None))


def _reject_served(options: Mapping[str, Any], workflow: Workflow) -> None:
    if not is_served(options):
        return
    if options["kind"] == "memory":
        raise ConfigError("transport.inference=learner: in one process the actor has the policy (choices: actor)")
    if options["prefetch"] >= options["chunk"]:
        raise ConfigError(
            f"transport.prefetch: {options['prefetch']} actions before the end of a chunk are not less than "
            f"transport.chunk={options['chunk']}"
        )
    name, carry = type(workflow).__name__, workflow.initial_carry(1)
    if _remembers(carry):
        raise ConfigError(
            f"transport.inference=learner: {name} remembers earlier observations or actions here, and each question "
            "begins anew (choices: actor)"
        )
    if _is_plan(carry) and options["chunk"] > (length := next(tree_leaves(carry["queue"]))[1].shape[1]):
        raise ConfigError(f"transport.chunk: {options['chunk']} actions are more than the {length} of a plan of {name}")


def _is_plan(carry: Any) -> bool:
    """Return whether it is that of a `RecedingHorizon`."""
    return isinstance(carry, Mapping) and carry.keys() == {"observations", "queue", "left"}


def _remembers(carry: Any) -> bool:
    """Return whether a policy needs more of what was before than a plan, which can be made anew from what is seen."""
    if _is_plan(carry):
        return any(leaf.shape[1] > 1 for _, leaf in tree_leaves(carry["observations"]))
    return any(leaf is not None for _, leaf in tree_leaves(carry))


def is_served(options: Mapping[str, Any]) -> bool:
    """Return whether the learner decides for actors; `options` are the transport's."""
    return bool(options["inference"] == "learner")


def published(config: Mapping[str, Any], workflow: Workflow) -> Sequence[str] | None:
    """Return the modules whose weights actors get: none where the learner decides; None: what the workflow broadcasts.

    A learner that began with the weights of another run sends all of its own: actors do not have those.
    """
    options = config["transport"]
    if is_served(options):
        return ()
    if options["publish"] is None and config["training"]["resume_path"] is not None:
        return list(dict.fromkeys(name.split(".")[0] for name in workflow.state_dict() if "." in name))
    parts: Sequence[str] | None = options["publish"]
    return parts


def served_policy(spec: EnvSpec, options: Mapping[str, Any], *, imitates: bool) -> ServedPolicy:
    """Return what takes the place of a policy that the learner has."""
    cpu = torch.device("cpu")
    given = {key: options[key] for key in ("chunk", "prefetch", "deadline_s")}
    return ServedPolicy(blank(spec.observation, cpu), blank(spec.action, cpu), **given, imitates=imitates)


def make_inference(
    spec: EnvSpec, config: Mapping[str, Any], workflow: Workflow, receiver: Receiver, context: WorkflowContext
) -> Inference | None:
    """Return what acts for actors, where they ask."""
    options, cpu = config["transport"], torch.device("cpu")
    if not is_served(options):
        return None
    seed, device = context.rng.seed("inference"), context.device
    examples = blank(spec.observation, cpu), blank(spec.action, cpu)
    return Inference(workflow, receiver, *examples, chunk=options["chunk"], seed=seed, device=device)


def example_step(
    spec: EnvSpec,
    config: Mapping[str, Any],
    phases: Sequence[Phase],
    workflow: Workflow,
    companions: Companions | None,
) -> dict[str, Tree]:
    """Return a step as actors send it, with nothing in it: the schema of the stream. No robot moves for it."""
    device = next((tensor.device for tensor in workflow.state_dict().values()), torch.device("cpu"))
    is_first, obs = torch.ones(1, dtype=torch.bool, device=device), blank(spec.observation, device)
    first = next((phase for phase in phases if phase.type == "online"), phases[0])
    companions = companions.unattended() if isinstance(companions, Supervision) else companions
    policy = workflow if companions is None else companions.during(first, 0)
    with isolated_rng(0), torch.inference_mode():
        actions, extras, _ = policy.act(obs, policy.initial_carry(1), is_first=is_first, explore=True, step=0)
    number, infos = torch.zeros(1, device=device), config["environment"].get("info_keys") or ()
    row = {
        "observations": obs,
        "actions": actions,
        "rewards": number,
        "terminated": ~is_first,
        "truncated": ~is_first,
        "final_observations": obs,
        "is_first": is_first,
        **({"infos": dict.fromkeys(dict.fromkeys(infos), number)} if infos else {}),
        **(extras or {}),
    }
    result = CollectResult(1, 1, tree_map(lambda leaf: leaf[None].clone(), row))
    return sent_step(result if companions is None else companions.recorded(result), 0, tells=_tells(config))


def _tells(config: Mapping[str, Any]) -> bool:
    """Return whether steps tell who and when: one process writes that down itself, and must repeat to the bit."""
    return bool(config["transport"]["kind"] != "memory")


def make_learner(
    env: VectorEnv, config: Mapping[str, Any], run: RunDirectory, made: Mapping[str, Any], example: Tree
) -> tuple[Learner, Receiver]:
    """Return the orchestrator of a run whose data comes from actors, and its end of the transport, which listens."""
    options, phases = config["transport"], made["scheduler"].phases
    address = run.path / FILES / ADDRESS
    address.unlink(missing_ok=True)  # of the process before this one
    receiver = open_receiver(transport_of(config, run.path), example)
    if options["kind"] == "network":
        replace_file(address, receiver.address)
    streams = ActorStreams(whole_episodes=options["actors"] > 1)
    tracker, buffers = made["tracker"], made["context"].buffers
    journal = journal_of(tracker) if _tells(config) else None
    remote = RemoteCollector(env, receiver, streams, phases, buffers, tracker.timer, journal=journal)
    cursors = None if options["kind"] == "memory" else Cursors(run.path / FILES / "cursors.json", made["checkpoints"])
    context = made["context"]
    learner = Learner(
        **made,
        remote=remote,
        publish_updates=options["publish_updates"],
        publish=published(config, made["workflow"]),
        cursors=cursors,
        is_waited_for=options["max_lead"] is not None,
        inference=make_inference(context.spec, config, made["workflow"], receiver, context),
    )
    return learner, receiver


def make_actor(
    config: Mapping[str, Any],
    env: VectorEnv,
    policy: Workflow,
    context: WorkflowContext,
    phases: Sequence[Phase],
    companions: Companions | None,
    sender: Sender,
    begun: int = 0,
) -> Actor:
    """Return the control loop of one actor, which has recorded `begun` steps before: it draws other episodes now."""
    options = config["transport"]
    name = options["actor"]
    return Actor(
        workflow=policy,
        companions=companions,
        collector=Collector(env, context.rng.seed("actor", name, begun), lambda _: nullcontext()),
        sender=sender,
        phases=phases,
        counters=context.counters,
        name=name,
        publish=published(config, policy),
        max_lead=options["max_lead"],
        tells=_tells(config),
    )


def transport_of(config: Mapping[str, Any], home: Path, *, is_actor: bool = False) -> TransportConfig:
    """Return what the transport is told; files that the config gives no place lie in `home`, the run's directory."""
    options = config["transport"]
    known = {entry.name for entry in fields(TransportConfig)}
    given = {key: value for key, value in options.items() if key in known and value is not None}
    place = home / ("actors" if is_actor else FILES)
    given["directory"] = str(place / options["actor"] if is_actor else place)
    if is_actor and options["directory"] is not None:
        given["directory"] = options["directory"]
    if options["kind"] == "host" and options["address"] is None:
        given["address"] = socket_of(home)
    if is_actor and options["kind"] == "network" and str(options["address"]).endswith(":0"):
        given["address_file"] = str(home / FILES / ADDRESS)
    return TransportConfig(**{**given, "limits": Limits(**options["limits"])})


def blank(space: Space, device: torch.device) -> Any:
    """Return one observation of zeros; of a mask, all allowed."""
    if isinstance(space, Mapping):
        return {key: _blank_leaf(leaf, device) for key, leaf in space.items()}
    return _blank_leaf(space, device)


def _blank_leaf(leaf: Leaf, device: torch.device) -> Tensor:
    if isinstance(leaf, Box):
        make = torch.ones if leaf.dtype == torch.bool else torch.zeros
        return make(1, *leaf.shape, dtype=leaf.dtype, device=device)
    shape = (len(leaf.nvec),) if isinstance(leaf, MultiDiscrete) else ()
    return torch.zeros(1, *shape, dtype=torch.int64, device=device)
