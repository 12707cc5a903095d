"""Several agents of one config, trained as one: `experiment.num_seeds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from rl_lab.config.binding import bind
from rl_lab.config.targets import Targets
from rl_lab.core.context import Named, WorkflowContext
from rl_lab.core.errors import ConfigError
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.core.seeding import RngStreams, isolated_rng
from rl_lab.core.seeds import stack_agents
from rl_lab.core.spaces import EnvSpec
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.per_seed import PerSeedBuffer
from rl_lab.orchestration.static_step import StaticSteps

ABLE = "Dreamer, PlaNet"  # of the packaged workflows


def reject_seeds(config: Mapping[str, Any], targets: Targets) -> None:
    """Refuse several agents where the workflow, or what else the config asks for, knows only one."""
    num = config["experiment"]["num_seeds"]
    workflow: Any = targets.load("workflow", config["workflow"], Workflow)
    if num > 1 and not workflow.batches_seeds:
        raise ConfigError(
            f"experiment.num_seeds: {workflow.__name__} trains one agent at a time, not {num} (workflows that can: "
            f"{ABLE}; any: experiment.seed=1,2,3, one after another)"
        )
    if num > 1 and config["training"]["teacher"] is not None:
        raise ConfigError(f"experiment.num_seeds: {num} agents cannot have training.teacher (one can: 1)")


def of_all_agents(config: Mapping[str, Any], num_envs: int | None = None) -> dict[str, Any]:
    """Return the environment's config with as many copies as all agents need; `num_envs` are those of one."""
    node = config["environment"]
    own, num = node.get("num_envs", 1) if num_envs is None else num_envs, config["experiment"]["num_seeds"]
    return {**node, "num_envs": own * num} if num > 1 or num_envs is not None else dict(node)


def bind_agents(
    config: Mapping[str, Any],
    targets: Targets,
    *,
    spec: EnvSpec,
    num_envs: int,
    device: torch.device,
    static: StaticSteps,
    ranks: Ranks = ALONE,
) -> tuple[WorkflowContext, Workflow]:
    """Build the agents as runs with their seeds would, and make one of them that is all; `num_envs` are all theirs."""
    num, seed = config["experiment"]["num_seeds"], config["experiment"]["seed"]
    own = num_envs // num
    context, workflow = bind(config, targets, spec=spec, num_envs=own, device=device, static=static, ranks=ranks)
    if num == 1:
        return context, workflow
    made = [(context, workflow)]
    for agent in range(1, num):
        with isolated_rng(RngStreams(seed + agent).seed("global")):
            idle = StaticSteps()  # they never run: the first one has what they hold
            made.append(bind(config, targets, spec=spec, num_envs=own, device=device, static=idle, agent=agent))
    stack_agents([one for _, one in made], [list(given.optimizers.values()) for given, _ in made])
    parts = {name: PerSeedBuffer([given.buffers[name] for given, _ in made]) for name in context.buffers}
    return replace(context, buffers=Named("buffer", parts)), workflow
