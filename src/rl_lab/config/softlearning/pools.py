"""Softlearning's replay pools: buffers of the lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_lab.config.foreign import Options, as_block
from rl_lab.config.softlearning.options import Part, Surroundings, Translator, translate_node
from rl_lab.core.errors import ConfigError

KEPT = ("gamma", "min_size", "storage")  # of a buffer whose class changes
REPLAY, HINDSIGHT = "rl_lab.buffers.replay.ReplayBuffer", "rl_lab.buffers.hindsight.HindsightBuffer"


def simple_pool(options: Options, around: Surroundings) -> Part:
    """Return a replay buffer."""
    node = {"_target_": REPLAY, "capacity": options.need("max_size")}
    return Part({**node, "batch_size": around.batch_size})


def hindsight_pool(options: Options, around: Surroundings) -> Part:
    """Return a hindsight buffer with the sparse reward of the Fetch tasks: a JSON cannot hold `reward_fn`."""
    strategy = Options(f"{options.path}.her_strategy", options.take("her_strategy"))
    relabel = {
        "strategy": strategy.take("type", "future"),
        "probability": strategy.take("resampling_probability", 0.8),
    }
    strategy.finish()
    node = {
        "_target_": HINDSIGHT,
        "capacity": options.need("max_size"),
        "batch_size": around.batch_size,
        "reward": {"_target_": "rl_lab.ops.goal_rewards.SparseDistance", "threshold": 0.05},
        "relabel": relabel,
    }
    return Part(node)


def union_pool(options: Options, around: Surroundings) -> Part:
    """Return a union in equal shares; what is collected goes to the first pool."""
    pools = options.need("pools")
    if not isinstance(pools, list | tuple) or not pools:
        raise ConfigError(f"{options.path}.pools: must be a list of pools, not {pools!r}")
    if not isinstance(around.batch_size, int):
        raise ConfigError(f"{options.path}: the batch_size to share out must be a number, not {around.batch_size!r}")
    share, rest = divmod(around.batch_size, len(pools))
    parts = {}
    for index, pool in enumerate(pools):
        size = share + (rest if index == 0 else 0)
        parts[f"pool_{index}"] = {**_pool(f"{options.path}.pools.{index}", pool, around), "batch_size": size}
    node = {
        "_target_": "rl_lab.buffers.union.UnionBuffer",
        "batch_size": around.batch_size,
        "ratios": {name: part["batch_size"] / around.batch_size for name, part in parts.items()},
        "add_to": "pool_0",
        "parts": parts,
    }
    return Part(node)


def handed_down(node: dict[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return a buffer that is told what stood at its place; a union tells its pools, of which one waits for steps."""
    if "parts" not in node:
        return {**kept, **node}
    parts = {}
    for name, part in node["parts"].items():
        told = {key: kept[key] for key in KEPT if key in kept and (key != "min_size" or name == node["add_to"])}
        parts[name] = {**told, **part} if part["_target_"] in (REPLAY, HINDSIGHT) else part
    return {**node, "parts": parts}


def _pool(path: str, pool: Any, around: Surroundings) -> dict[str, Any]:
    """Return the buffer of a pool; one that says its `_target_` is the lab's own, a dataset for example."""
    block = as_block(path, pool)
    return dict(block) if "_target_" in block else translate_node(path, block, POOLS, around).node


POOLS: dict[str, Translator] = {
    "SimpleReplayPool": simple_pool,
    "FlexibleReplayPool": simple_pool,
    "GoalReplayPool": simple_pool,
    "HindsightExperienceReplayPool": hindsight_pool,
    "UnionPool": union_pool,
}
