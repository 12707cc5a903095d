"""From a checked config to the objects it names: a workflow and all that its context offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_lab.config.signatures import signature_of
from rl_lab.config.targets import Supply, Targets
from rl_lab.config.validate import read_phases
from rl_lab.core.buffer import Buffer
from rl_lab.core.context import Named, Optimizers, WorkflowContext
from rl_lab.core.errors import ConfigError
from rl_lab.core.phase import COLLECT, Phase
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.core.seeding import RngStreams
from rl_lab.core.seeds import Seeds
from rl_lab.core.spaces import Box, Discrete, EnvSpec, MultiDiscrete, flat_dim
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.static_step import StaticSteps


def bind(
    config: Mapping[str, Any],
    targets: Targets,
    *,
    spec: EnvSpec,
    num_envs: int,
    device: torch.device,
    static: StaticSteps,
    agent: int = 0,
    ranks: Ranks = ALONE,
) -> tuple[WorkflowContext, Workflow]:
    """Build components, buffers and workflow for an environment of this spec, and bring them together.

    `agent` is its number where several are trained as one; `num_envs` are its own environments.
    """
    rng, phases = RngStreams(config["experiment"]["seed"] + agent, ranks.rank), read_phases(config, targets)
    with device:
        context = WorkflowContext(
            config=config,
            device=device,
            spec=spec,
            num_envs=num_envs,
            components=_build_block("components", config, targets),
            controllers=_build_block("controllers", config, targets),
            optimizers=Optimizers(_build_block("optimizers", config, targets)),
            buffers=_build_buffers(config, targets, _for_buffers(rng, device, spec, num_envs, phases)),
            rng=rng,
            static=static,
            fuse=static.fuse,
            seeds=Seeds(config["experiment"]["num_seeds"]),
            ranks=ranks,
        )
        workflow: Workflow = targets.instantiate("workflow", {**config["workflow"], **config["algorithm"]})
        workflow.initialize(context)
    return context, workflow


def dims(spec: EnvSpec) -> dict[str, Any]:
    """Return `_dims`: what YAML may ask for of the environment."""
    shapes = (
        {name: _shape(leaf) for name, leaf in spec.observation.items()}
        if isinstance(spec.observation, Mapping)
        else _shape(spec.observation)
    )
    return {
        "observation": flat_dim(spec.observation),
        "observation_shape": shapes,
        "action": flat_dim(spec.action),
        "episode_steps": spec.max_episode_steps or 0,  # no limit: 0
    }


def _shape(space: Box | Discrete | MultiDiscrete) -> list[int]:
    return list(space.shape) if isinstance(space, Box) else [flat_dim(space)]


def _for_buffers(
    rng: RngStreams, device: torch.device, spec: EnvSpec, num_envs: int, phases: tuple[Phase, ...]
) -> Supply:
    """Return what every buffer, and every buffer within one, is given where it takes it."""
    shared = {"device": device, "num_envs": num_envs, "spec": spec}

    def supply(path: str) -> Mapping[str, Any]:
        names = path.split(".")[1:]
        calls = [call for phase in phases if phase.buffer == names[0] for call in phase.hooks]
        collected = max((call.times for call in calls if call.name == COLLECT), default=0)
        return {**shared, "seed": rng.seed("buffer", *names), "collect_steps": collected}

    return supply


def _build_block(block: str, config: Mapping[str, Any], targets: Targets) -> Named[Any]:
    return Named(block.removesuffix("s"), _built(block, config, targets))


def _build_buffers(config: Mapping[str, Any], targets: Targets, supply: Supply) -> Named[Buffer]:
    """Build all buffers, and let them hear of each other."""
    told = {**config, "buffers": _discounted(config["buffers"], _discount(config, targets), targets)}
    built: dict[str, Buffer] = _built("buffers", told, targets, supply)
    buffers = Named("buffer", built)
    for name, buffer in built.items():
        try:
            buffer.meet(buffers)
        except ConfigError as error:
            raise ConfigError(f"buffers.{name}: {error}") from error
    return buffers


def _discount(config: Mapping[str, Any], targets: Targets) -> Any:
    """Return the `gamma` that the workflow learns with; None: it has none, or finds it itself."""
    said = {**config["workflow"], **config["algorithm"]}
    argument = signature_of(targets.load("workflow", config["workflow"])).arguments.get("gamma")
    return None if argument is None else said.get("gamma", argument.default)


def _discounted(node: Any, gamma: float | None, targets: Targets) -> Any:
    """Return a tree of nodes in which those that take a `gamma` and say none have this one."""
    if isinstance(node, list | tuple):
        return type(node)(_discounted(part, gamma, targets) for part in node)
    if gamma is None or not isinstance(node, Mapping):
        return node
    told = {key: _discounted(part, gamma, targets) for key, part in node.items()}
    takes_it = "_target_" in node and "gamma" in signature_of(targets.load("buffers", node)).arguments
    return {"gamma": gamma, **told} if takes_it else told


def _built(block: str, config: Mapping[str, Any], targets: Targets, *inherited: Supply) -> dict[str, Any]:
    """Build the nodes of a block by name; one that is null is absent."""
    nodes = {name: node for name, node in config[block].items() if node is not None}
    return {name: targets.instantiate(f"{block}.{name}", node, *inherited) for name, node in nodes.items()}
