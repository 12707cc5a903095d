"""Reads files of the modular mono-repo: experiment, algorithm, environment, network, buffer, training, logging.

A top-level `monorepo`, a block or the path of a file, is a whole run; `monorepo.file` is the path where other keys
stand beside it, as `monorepo.algorithm.lr` does, and what they say is above the file. What the mono-repo leaves open is
as the lab has it. The command line, in the lab's own words, is above all.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from rl_lab.config.foreign import Compose, Options, Placed, as_block, laid_under, plain, read_block
from rl_lab.core.errors import ConfigError, unknown_name

logger = logging.getLogger(__name__)

KEY = "monorepo"
BLOCKS = ("experiment", "algorithm", "environment", "network", "buffer", "training", "logging")
WRAPPERS = {
    "gym": "gymnasium",
    "gymnasium": "gymnasium",
    "dm_control": "dm_control",
    "dmc": "dm_control",
    "atari": "atari",
}
FAMILIES = {"dm_control": "dm_control/", "atari": "ALE/"}  # what names begin with here
CONVOLUTIONS = ("channels", "kernel_sizes", "strides")
MEMORIES = {"rnn": "gru", "gru": "gru", "lstm": "lstm", "transformer": "transformer"}
ADAM = {"_target_": "torch.optim.Adam", "_partial_": True, "fused": True}
SHARED = {  # names that are common for the lab's `algorithm.` keys
    "lambda": "gae_lambda",
    "clip_ratio": "clip_range",
    "vf_coef": "value_coef",
    "ent_coef": "entropy_coef",
    "epochs": "num_epochs",
    "n_epochs": "num_epochs",
    "discount": "gamma",
    "learning_starts": "random_steps",
    "polyak": "tau",
}


REPLAY = {"batch_size": "batch_size", "buffer_size": "capacity"}  # what some files say of the buffer there


@dataclass(frozen=True)
class Kind:
    """What an algorithm's name stands for."""

    groups: tuple[str, ...]
    networks: Mapping[str, str]  # name in the file -> component; none: it has its own, with optimisers of its own
    optimizers: tuple[str, ...]  # those that `lr` is for
    has_action_critic: bool = True
    num_envs: int = 1


PAIR = {"actor": "actor", "critic": "critic"}
PPO = Kind(
    (
        "+workflow=ppo",
        "+components@components.actor=mlp",
        "+components@components.critic=mlp",
        "+buffer@buffers.rollout=rollout",
    ),
    PAIR,
    ("policy",),
    has_action_critic=False,
    num_envs=8,
)
KINDS = {
    "ppo": PPO,
    "sac": Kind(("+preset=sac",), PAIR, ("actor", "critic", "alpha")),
    "td3": Kind(("+preset=td3",), PAIR, ("actor", "critic")),
    "ddpg": Kind(("+preset=ddpg",), PAIR, ("actor", "critic")),
    "dqn": Kind(("+preset=dqn",), {"q_network": "critic", "critic": "critic"}, ("critic",), False),
    "dreamer": Kind(("+preset=dreamer_v3",), {}, ("world_model", "actor", "critic")),
    "planet": Kind(("+preset=planet",), {}, ("world_model",)),
}


def translate(config: DictConfig, compose: Compose, overrides: Iterable[Override] = ()) -> DictConfig:
    """Return the config in the lab's words; `compose` gives configs of groups, `overrides` are the command line's."""
    if KEY not in config:
        return config
    OmegaConf.set_struct(config, False)
    config = laid_under(config, place(_read(plain(config.pop(KEY)))), compose)
    for override in overrides:
        key = override.key_or_group
        if key != KEY and not key.startswith(f"{KEY}."):
            OmegaConf.update(config, key, override.value(), force_add=True)
    return config


def is_file_of_it(tree: Mapping[str, Any]) -> bool:
    """Return whether a YAML is in the mono-repo's words: its algorithm has a name, where the lab has a workflow."""
    algorithm = tree.get("algorithm")
    return isinstance(algorithm, Mapping) and "name" in algorithm and not tree.keys() & {"workflow", "defaults"}


def _read(given: Any) -> Mapping[str, Any]:
    """Return the whole file, changed by what stands beside `file`."""
    if not isinstance(given, Mapping) or "file" not in given:
        return read_block(KEY, given)
    beside = {key: value for key, value in given.items() if key != "file"}
    merged = OmegaConf.merge(dict(read_block(f"{KEY}.file", given["file"])), beside)
    return as_block(KEY, OmegaConf.to_container(merged))


def place(file: Mapping[str, Any]) -> Placed:
    """Return where its parts stand in the lab."""
    for key in file:
        if key not in BLOCKS:
            raise ConfigError(unknown_name(f"block of {KEY}", key, BLOCKS))
    blocks = {name: Options(f"{KEY}.{name}", file.get(name)) for name in BLOCKS}
    name = blocks["algorithm"].word("name").lower()
    if name not in KINDS:
        raise ConfigError(unknown_name(f"{KEY}.algorithm.name", name, KINDS))
    kind, groups = KINDS[name], list(KINDS[name].groups)
    values = _environment(blocks["environment"], kind, groups)
    values |= _networks(file.get("network"), kind, groups)
    values |= _algorithm(file["algorithm"], kind) | _buffer(blocks["buffer"], file, kind, values, groups)
    values |= _experiment(blocks["experiment"]) | _training(blocks["training"]) | _logging(blocks["logging"])
    for block in ("experiment", "environment", "buffer", "training", "logging"):
        blocks[block].finish()
    return Placed(groups, re.sub(r"\W+", "_", f"{name}_{values['environment.name']}".lower()), values)


def _experiment(options: Options) -> dict[str, Any]:
    device = options.take("device", "auto")
    said = {"device": "auto" if device == "cuda" else device}  # its files say cuda on every machine
    said |= {key: value for key in ("name", "seed", "tags") if (value := options.take(key)) is not None}
    return _under("experiment", said)


def _environment(options: Options, kind: Kind, groups: list[str]) -> dict[str, Any]:
    """Return the environment; normalisation is the algorithm's business here, so that it is saved with the policy."""
    name = options.word("name")
    family = options.choose("wrapper", WRAPPERS, "gym")
    groups.append(f"+environment={family}")
    prefix = FAMILIES.get(family, "")
    if family == "dm_control":
        name = name.replace("_", "-", 1) if "-" not in name else name
    said: dict[str, Any] = {"environment.name": name if name.startswith(prefix) else prefix + name}
    said["environment.num_envs"] = options.number("num_envs", kind.num_envs, low=1)
    if options.flag("normalize_obs"):
        said["algorithm.normalize_observations"] = True
    if options.flag("normalize_reward"):
        said["algorithm.normalize_rewards"] = True
    return said


def _networks(given: Any, kind: Kind, groups: list[str]) -> dict[str, Any]:
    """Return the networks; one that is not an MLP is read by all heads, so all must ask for the same."""
    nets = as_block(f"{KEY}.network", given)
    said: dict[str, Any] = {}
    shared: set[str] = set()
    for name, node in nets.items():
        if name not in kind.networks:
            raise ConfigError(unknown_name(f"{KEY}.network", name, kind.networks or ["none: it has its own"]))
        options = Options(f"{KEY}.network.{name}", node)
        path = f"components.{kind.networks[name]}"
        type_ = options.choose("type", {key: key for key in ("mlp", "cnn", *MEMORIES)}, "mlp")
        shared.add(type_)
        said |= _network(options, path, type_, kind)
        options.finish()
    if len(shared) > 1:
        raise ConfigError(f"{KEY}.network: all must be of one type here, not {', '.join(sorted(shared))}")
    front = (shared or {"mlp"}).pop()
    if front == "cnn":
        groups.append("+components@components.encoder=cnn")
    elif front in MEMORIES:
        groups.append(f"+components@components.memory={MEMORIES[front]}")
    return said


def _network(options: Options, path: str, type_: str, kind: Kind) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if "hidden_dims" in options:
        said[f"{path}.hidden_dims"] = options.sizes("hidden_dims")
    if (activation := options.take("activation")) is not None:
        said[f"{path}.activation"] = activation
    if type_ == "mlp":
        return said
    if type_ in MEMORIES:
        if kind is not PPO:
            raise ConfigError(f"{options.path}.type: {type_} is there for ppo only")
        width = "${components.memory.hidden_dim}"
        said["components.memory.hidden_dim"] = options.number("hidden_dim", 64, low=1)
    else:
        width = "${components.encoder.output_dim}"
        said |= {f"components.encoder.{key}": options.sizes(key) for key in CONVOLUTIONS if key in options}
    if path == "components.critic" and kind.has_action_critic:
        width = "${add:" + width + ",${_dims.action}}"
    return said | {f"{path}.input_dim": width}


def _algorithm(given: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the algorithm's options; those that the lab does not know are refused with its own, later on."""
    said: dict[str, Any] = {}
    for key, value in given.items():
        if key == "lr":
            made = {f"optimizers.{name}": {**ADAM, "lr": value} for name in kind.optimizers}
            said |= made if kind.networks else {f"optimizers.{name}.lr": value for name in kind.optimizers}
        elif key in REPLAY and kind is not PPO:
            said[f"buffers.replay.{REPLAY[key]}"] = value
        elif key not in ("name", "minibatch_size", "batch_size"):
            said[f"algorithm.{SHARED.get(key, key)}"] = value
    return said


def _buffer(
    options: Options, file: Mapping[str, Any], kind: Kind, values: Mapping[str, Any], groups: list[str]
) -> dict[str, Any]:
    """Return the buffer; a trajectory's size is that of a rollout of all environment copies together."""
    if kind is PPO:
        options.choose("type", {"trajectory": "rollout"}, "trajectory")
        size, copies = int(options.number("size", 2_048, low=1)), int(values["environment.num_envs"])
        said: dict[str, Any] = {"training.phases": [_rollout_phase(max(1, size // copies))]}
        name = "minibatch_size" if "minibatch_size" in file["algorithm"] else "batch_size"
        part = Options(f"{KEY}.algorithm", file["algorithm"]).number(name, low=1)
        return said if part is None else said | {"algorithm.num_minibatches": max(1, size // int(part))}
    type_ = options.choose("type", {"uniform": "", "replay": "", "prioritized": "prioritized"}, "uniform")
    if type_:
        groups.append(f"buffer@buffers.replay={type_}")
    names = {"size": "capacity", "capacity": "capacity", "batch_size": "batch_size", "n_step": "n_step"}
    given = {key: options.take(key) for key in names}
    said = {f"buffers.replay.{names[key]}": value for key, value in given.items() if value is not None}
    priority = {key: options.take(key) for key in ("alpha", "beta")} if type_ else {}
    return said | {f"buffers.replay.priority.{key}": value for key, value in priority.items() if value is not None}


def _rollout_phase(steps: int) -> dict[str, Any]:
    return {
        "name": "train",
        "buffer": "rollout",
        "duration_steps": "${training.total_timesteps}",
        "workflow_hooks": [{"collect": steps}, "update_policy"],
    }


def _training(options: Options) -> dict[str, Any]:
    keys = ("total_timesteps", "eval_frequency", "checkpoint_frequency", "num_eval_episodes")
    given = {key: options.take(key) for key in keys}
    return _under("training", {key: value for key, value in given.items() if value is not None})


def _logging(options: Options) -> dict[str, Any]:
    """Return the sinks; W&B is left out where it is not installed, as its files turn it on everywhere."""
    keys = ("terminal", "tensorboard", "csv")
    said = _under("logging", {key: value for key in keys if (value := options.flag(key)) is not None})
    wandb = Options(f"{options.path}.wandb", options.take("wandb"))
    is_on, project, tags = wandb.flag("enabled"), wandb.take("project"), wandb.take("tags")
    wandb.finish()
    if tags:
        said["experiment.tags"] = tags
    if is_on and importlib.util.find_spec("wandb") is None:
        logger.warning(
            "%s.enabled: wandb is not installed (pip install rl-lab[wandb]); the run goes on without", wandb.path
        )
    elif is_on:
        said["logging.wandb"] = project or True
    return said


def _under(block: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{block}.{key}": value for key, value in values.items()}
