"""Everything that can be checked before anything is built: types, ranges, names, hooks, phases, buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rl_lab.config.alerts import check_rules, reject_responses
from rl_lab.config.schema import LabConfig
from rl_lab.config.signatures import signature_of
from rl_lab.config.targets import Pending, Targets
from rl_lab.config.typed_values import coerce_model
from rl_lab.core.buffer import BatchKind, Buffer
from rl_lab.core.context import Named, WorkflowContext
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.core.phase import COLLECT, EVALUATE, HookCall, Phase
from rl_lab.core.workflow import HookInfo, Workflow
from rl_lab.orchestration.phases import DurationError, parse_phases

# Blocks of named nodes: what each must be, and which arguments the lab gives itself.
NAMED_BLOCKS: dict[str, type] = {
    "components": nn.Module,
    "controllers": nn.Module,
    "buffers": Buffer,
    "optimizers": torch.optim.Optimizer,
}
FREE_BLOCKS = ("environment", "workflow", "algorithm", *NAMED_BLOCKS)
SUPPLIED_TO_BUFFERS = ("device", "num_envs", "spec", "seed", "collect_steps")  # also to buffers within buffers

GIVING: dict[BatchKind, tuple[str, ...]] = {  # configs of the group buffer, by what their batches are
    "transitions": ("replay", "prioritized", "hindsight"),
    "sequences": ("sequence",),
    "prioritized sequences": ("prioritized_sequence",),
    "steps of episodes": ("episode", "chunks"),
    "rollouts": ("rollout",),
}


def validate(tree: Mapping[str, Any], targets: Targets) -> dict[str, Any]:
    """Return the config with every value as its declaration asks for it, or raise a ConfigError of one line."""
    for block in FREE_BLOCKS:
        targets.allow_list.check_tree(tree.get(block), block)
    _reject_unknown_blocks(tree, targets)
    config = coerce_model("", _with_durations(tree), LabConfig) | {
        block: tree.get(block) or {} for block in FREE_BLOCKS
    }
    config["environment"] = targets.check("environment", config["environment"], supplied=("device",), base=VectorEnv)
    config |= _check_workflow(config, targets)
    for block, base in NAMED_BLOCKS.items():
        config[block] = _check_block(block, config[block], base, targets)
    config["alerts"]["rules"] = check_rules(config["alerts"])
    reject_responses(config)
    read_phases(config, targets)
    _reject_only_random(config)
    return config


def _reject_unknown_blocks(tree: Mapping[str, Any], targets: Targets) -> None:
    """Refuse what is no block; where a key was given without its block (`gamma=0.9`) the line says where it belongs."""
    known = sorted(LabConfig.model_fields)
    for key in (key for key in tree if key not in known):
        workflow = signature_of(targets.load("workflow", tree["workflow"], Workflow)).arguments
        tree = {**tree, "algorithm": {**dict.fromkeys(workflow), **(tree["algorithm"] or {})}}
        if places := [place for block in known for place in _places(key, tree.get(block), block)]:
            hint = " or ".join(places[:3])
            raise ConfigError(f"unknown block {key!r}; did you mean {hint}? (choices: {', '.join(known)})")
        raise ConfigError(unknown_name("block", key, known))


def _places(key: str, node: Any, path: str) -> list[str]:
    """Return where a key stands below `node`."""
    if not isinstance(node, Mapping):
        return []
    return [
        place
        for name, value in node.items()
        for place in ([f"{path}.{name}"] if name == key else _places(key, value, f"{path}.{name}"))
    ]


def _check_workflow(config: Mapping[str, Any], targets: Targets) -> dict[str, Any]:
    """Check `workflow` and `algorithm` together: both are arguments of one constructor."""
    workflow, algorithm = config["workflow"], config["algorithm"]
    if clash := sorted(workflow.keys() & algorithm.keys()):
        raise ConfigError(f"algorithm.{clash[0]}: also given as workflow.{clash[0]}")
    targets.load("workflow", workflow, Workflow)
    path = "algorithm" if algorithm else "workflow"
    checked = targets.check(path, workflow | algorithm, base=Workflow)
    return {"workflow": {k: checked[k] for k in workflow}, "algorithm": {k: checked[k] for k in algorithm}}


def _check_block(block: str, nodes: Mapping[str, Any], base: type, targets: Targets) -> dict[str, Any]:
    checked = {}
    for name, node in nodes.items():
        if isinstance(node, Mapping) and "_target_" not in node:
            others = [other for other, there in nodes.items() if isinstance(there, Mapping) and "_target_" in there]
            raise ConfigError(
                f"{block}.{name}: missing _target_ (a dotted name such as rl_lab.components.mlp.MLP); "
                f"the {block} of this experiment: {', '.join(others) or 'none'}"
            )
        if node is not None and block == "optimizers" and node.get("_partial_") is not True:
            raise ConfigError(f"optimizers.{name}: needs _partial_: true (the workflow gives it the parameters)")
        inherited = SUPPLIED_TO_BUFFERS if block == "buffers" else ()
        checked[name] = None if node is None else targets.check(f"{block}.{name}", node, inherited=inherited, base=base)
    return checked


def read_phases(config: Mapping[str, Any], targets: Targets) -> tuple[Phase, ...]:
    """Return the phases, checked against the hooks of the workflow and the buffers that exist."""
    workflow = targets.load("workflow", config["workflow"], Workflow)
    assert isinstance(workflow, type)
    assert issubclass(workflow, Workflow)
    buffers = [name for name, node in config["buffers"].items() if node is not None]
    try:
        phases = parse_phases(config["training"]["phases"], workflow.hooks(), buffers)
    except DurationError:
        _reject_only_random(config)
        raise
    return _with_evaluation(phases, config["training"]["eval_frequency"])


def _with_durations(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config in which durations of phases that wait for the environment's spec are 1 until then."""
    training = tree.get("training")
    phases = training.get("phases") if isinstance(training, Mapping) else None
    if not isinstance(training, Mapping) or not isinstance(phases, list):
        return tree
    known = [
        {key: 1 if isinstance(value, Pending) else value for key, value in phase.items()}
        if isinstance(phase, Mapping)
        else phase
        for phase in phases
    ]
    return {**tree, "training": {**training, "phases": known}}


def _reject_only_random(config: Mapping[str, Any]) -> None:
    """Refuse to act at random to the end, before a workflow can: durations of phases are computed from both numbers."""
    random_steps, total = config["algorithm"].get("random_steps", 0), config["training"]["total_timesteps"]
    if not isinstance(random_steps, Pending) and random_steps >= total:
        raise ConfigError(
            f"algorithm.random_steps: {random_steps} env steps of random actions are not less than "
            f"training.total_timesteps={total}"
        )


def reject_unused_buffers(phases: tuple[Phase, ...], buffers: Named[Buffer]) -> None:
    """Refuse buffers that no phase names and that the workflow did not ask for when it was initialised."""
    for phase in phases:
        if phase.buffer is not None:
            buffers[phase.buffer]  # asked for
    buffers.reject_unused("neither a phase nor the workflow uses")


def reject_idle(phases: tuple[Phase, ...], hooks: Mapping[str, HookInfo], buffers: Mapping[str, Buffer]) -> None:
    """Refuse a phase that can never update: its buffer is empty and nothing has collected into it by then.

    A buffer that is collected into is not asked: one of its parts may load data only to answer.
    """
    filled: set[str] = set()
    for phase in phases:
        if phase.buffer is not None and any(call.name == COLLECT for call in phase.hooks):
            if joined := buffers[phase.buffer].joins:
                raise ConfigError(
                    f"phase {phase.name!r} collects into buffer {phase.buffer!r}, which only joins others (choices: "
                    f"{', '.join(joined)})"
                )
            filled.add(phase.buffer)
        wants_batch = any(call.is_update and hooks[call.name].needs_batch for call in phase.hooks)
        if not wants_batch or phase.buffer is None or phase.buffer in filled:
            continue
        buffer = buffers[phase.buffer]
        is_fed = bool(buffer.joins) and filled.issuperset(buffer.joins)
        if not is_fed and not buffer.brings_data and not buffer.is_ready():
            raise ConfigError(
                f"phase {phase.name!r} can never update: buffer {phase.buffer!r} is empty and no phase up to it "
                "collects into it"
            )


def reject_batches(phases: tuple[Phase, ...], workflow: Workflow, context: WorkflowContext) -> None:
    """Refuse a buffer whose batches are of another kind than the workflow learns from."""
    hooks, wanted = workflow.hooks(), workflow.batch_kinds
    for phase in phases:
        learns = any(call.is_update and hooks[call.name].needs_batch for call in phase.hooks)
        if not learns or phase.buffer is None or not wanted:
            continue
        kind = context.buffers[phase.buffer].batch_kind
        if kind is not None and kind not in wanted:
            has_memory, memory = "memory" in context.components, ""
            if has_memory or "sequences" not in wanted:  # who always wants sequences has no choice of one
                memory = " with components.memory" if has_memory else " without components.memory"
            raise ConfigError(
                f"buffers.{phase.buffer}: {type(workflow).__name__}{memory} learns from {' or '.join(wanted)}, not "
                f"from {kind} (choices: {', '.join(name for kind in wanted for name in GIVING[kind])})"
            )


def reject_sizes(phases: tuple[Phase, ...], context: WorkflowContext) -> None:
    """Refuse a buffer of collected steps that is smaller than a batch, or waits for more than is collected."""
    total = context.config["training"]["total_timesteps"]
    learned_from = {phase.buffer for phase in phases if any(call.is_update for call in phase.hooks)}
    filled: dict[str, int] = {}  # env steps at most, by buffer
    for phase in phases:
        collected = context.num_envs * sum(call.times for call in phase.hooks if call.name == COLLECT)  # per cycle
        if phase.buffer is None:
            continue
        if collected == 0:
            _reject_hunger(phase, context.buffers[phase.buffer], filled)
            continue
        filled[phase.buffer] = filled.get(phase.buffer, 0) + _most_steps(phase, collected, total)
        path, node = f"buffers.{phase.buffer}", context.config["buffers"][phase.buffer]
        batch_size, capacity, min_size = (node.get(key) for key in ("batch_size", "capacity", "min_size"))
        if batch_size is not None and capacity is not None and batch_size > capacity:
            raise ConfigError(f"{path}.capacity: {capacity} is smaller than batch_size={batch_size}")
        needed = max(min_size or 0, context.buffers[phase.buffer].needed_steps)
        if phase.buffer in learned_from and needed > -(-total // collected) * collected:  # cycles are whole
            given = "sequence_length" if "sequence_length" in node else "min_size, or batch_size when it is null"
            key, why = ("", f" ({given})") if min_size is None else (".min_size", "")
            raise ConfigError(
                f"{path}{key}: {needed} steps before the first update{why} are more than "
                f"training.total_timesteps={total}"
            )


def _most_steps(phase: Phase, collected: int, total: int) -> int:
    """Return how many env steps a phase collects at most, at `collected` per cycle."""
    cycles = -(-total // collected)  # they are whole
    if phase.unit != "updates":
        cycles = min(cycles, phase.duration if phase.unit == "cycles" else -(-phase.duration // collected))
    return cycles * collected


def _reject_hunger(phase: Phase, buffer: Buffer, filled: Mapping[str, int]) -> None:
    """Refuse a phase that learns from what was collected before it when that is too little for one batch."""
    name, needed = phase.buffer or "", buffer.needed_steps
    if name in filled and any(call.is_update for call in phase.hooks) and needed > filled[name]:
        raise ConfigError(
            f"phase {phase.name!r} can never update: buffer {name!r} waits for {needed} env steps or more, "
            f"the phases before it collect {filled[name]}"
        )


def _with_evaluation(phases: tuple[Phase, ...], every_steps: int | None) -> tuple[Phase, ...]:
    """Add `eval_frequency` as the last hook of each phase; scheduling evaluation both ways is an error."""
    if every_steps is None:
        return phases
    for phase in phases:
        if any(call.name == EVALUATE for call in phase.hooks):
            raise ConfigError(
                f"training.eval_frequency and the hook {EVALUATE!r} of phase {phase.name!r} both schedule evaluation: "
                "give one of them"
            )
    clock = HookCall(EVALUATE, every_steps=every_steps)
    return tuple(replace(phase, hooks=(*phase.hooks, clock)) for phase in phases)
