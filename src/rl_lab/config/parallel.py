"""Several processes as one run: `experiment.devices`, or as many as torchrun has started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rl_lab.config.device import choose_device
from rl_lab.config.targets import Targets
from rl_lab.core.context import WorkflowContext
from rl_lab.core.errors import ConfigError
from rl_lab.core.phase import COLLECT, Phase
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.core.seeding import seed_everything
from rl_lab.core.workflow import Workflow
from rl_lab.distributed.process_group import num_started, process_group
from rl_lab.orchestration.hand_off import whole_weights
from rl_lab.orchestration.static_step import StaticSteps

KEY = "experiment.devices"
SHARDED = {
    "experiment.compile": "updates run eager",
    "experiment.debug": "must be false",
    "training.video_frequency": "must be null",
    "training.phases": "no phase may collect; demonstrations come from files (buffer/demonstrations)",
}
ABLE = "PPO, PPOAMP, SAC, TD3, DQN, Dreamer, TDMPC, BehaviorCloning, DiffusionPolicy, SFT, HiORS, RLPD"  # as packaged


def num_wanted(composed: DictConfig) -> int:
    """Return how many processes a config asks for; what is no number is refused later, with all that is wrong."""
    wanted = OmegaConf.select(composed, KEY)
    return wanted if type(wanted) is int else 1


@contextmanager
def joined(composed: DictConfig) -> Iterator[Ranks]:
    """Yield this process among those that were started for the run."""
    if num_started() == 1:
        yield ALONE
        return
    _reject_other(composed, num_started())
    name = str(OmegaConf.select(composed, "experiment.device"))
    if name.startswith("cuda:"):
        raise ConfigError(f"experiment.device: {name!r} is one GPU for {num_started()} processes (choices: auto, cuda)")
    with process_group(choose_device(name)) as ranks:
        yield ranks


def settle_devices(composed: DictConfig, ranks: Ranks) -> DictConfig:
    """Write into a config how many processes train it; it may have asked for as many, or for nothing."""
    _reject_other(composed, ranks.size)
    OmegaConf.update(composed, KEY, ranks.size, force_add=True)
    return composed


def _reject_other(composed: DictConfig, started: int) -> None:
    if (wanted := num_wanted(composed)) not in (1, started):
        raise ConfigError(f"{KEY}: {wanted} processes are asked for, but {started} were started")


def reject_ranks(config: Mapping[str, Any], targets: Targets, ranks: Ranks) -> None:
    """Refuse several processes where the workflow, or what else the config asks for, knows only one."""
    workflow: Any = targets.load("workflow", config["workflow"], Workflow)
    if ranks.size == 1:
        return
    if not workflow.reduces_over_ranks:
        raise ConfigError(
            f"{KEY}: {workflow.__name__} trains in one process, not in {ranks.size} (workflows that can: {ABLE})"
        )
    for key, is_set in (
        ("experiment.num_seeds", config["experiment"]["num_seeds"] > 1),
        ("training.teacher", config["training"]["teacher"] is not None),
        ("training.operator", config["training"]["operator"] is not None),
    ):
        if is_set:
            raise ConfigError(f"{KEY}: {ranks.size} processes cannot have {key} (one can: 1)")


def reject_sharded(config: Mapping[str, Any], phases: Iterable[Phase], workflow: Workflow, static: StaticSteps) -> None:
    """Refuse what sharded weights cannot do: act in one process while the others do something else, or be recorded."""
    if workflow.shards is None:
        return
    if static.execution != "eager" and config["experiment"]["compile"] == "auto":
        static.execution = "eager"
    for key, is_set in (
        ("experiment.compile", static.execution != "eager"),
        ("experiment.debug", config["experiment"]["debug"]),
        ("training.video_frequency", config["training"]["video_frequency"] is not None),
        *(("training.phases", any(call.name == COLLECT for call in phase.hooks)) for phase in phases),
    ):
        if is_set:
            raise ConfigError(f"{key}: {SHARDED[key]} where algorithm.shard_weights is true (or set that to false)")


def part_ways(workflow: Workflow, context: WorkflowContext) -> None:
    """Let all ranks begin with the first one's weights, and each draw from streams of its own from here on."""
    if context.ranks.size == 1:
        return
    context.ranks.share_(list(whole_weights(workflow).values()))
    if not context.ranks.is_first:
        seed_everything(context.rng.seed("global"))
