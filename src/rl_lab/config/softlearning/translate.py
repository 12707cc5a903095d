"""Puts what a composed config says in Softlearning's words into the lab's, before anything is capped or checked.

A node `{class_name: ..., config: {...}}` may stand in `components`, in `buffers` and as `workflow`. A top-level
`variant`, a block or the path of a `params.json`, is a whole run. What such a node says is above the YAML beside it;
what the command line says in the lab's own words is above both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from rl_lab.config.foreign import Compose, as_block, laid_under, plain, read_block
from rl_lab.config.softlearning.algorithms import ALGORITHMS
from rl_lab.config.softlearning.networks import ENCODER, NETWORKS
from rl_lab.config.softlearning.options import OBSERVATION, Part, Surroundings, Translator, translate_node
from rl_lab.config.softlearning.pools import KEPT, POOLS, handed_down
from rl_lab.config.softlearning.variant import place
from rl_lab.core.errors import ConfigError

VARIANT = "variant"
WORDS = ("class_name", "config")
CLASSES: dict[str, Mapping[str, Translator]] = {"workflow": ALGORITHMS, "buffers": POOLS, "components": NETWORKS}
PHASE = {
    "name": "train",
    "buffer": "replay",
    "duration_steps": "${training.total_timesteps}",
    "workflow_hooks": ["collect", "update_agent"],
}


def translate(config: DictConfig, compose: Compose, overrides: Iterable[Override] = ()) -> DictConfig:
    """Return the config in the lab's words; `compose` gives configs of groups, `overrides` are the command line's."""
    OmegaConf.set_struct(config, False)
    if VARIANT in config:
        placed = place(read_block(VARIANT, plain(config.pop(VARIANT))))
        config = laid_under(config, placed, compose)
    translated = [path for path, _, _ in _nodes(config)]
    encoder: Any = None
    for path, node, classes in list(_nodes(config)):  # the workflow first: it says the size of a batch
        part = translate_node(path, node, classes, _surroundings(config, path, node))
        if encoder not in (None, given := part.elsewhere.get(ENCODER, encoder)):
            raise ConfigError(f"{path}.config.preprocessors: must be those of the policy, both read one encoder")
        encoder = given
        _put(config, path, part)
    for override in overrides:
        key = override.key_or_group
        if translated and not _is_spoken(key, translated):
            OmegaConf.update(config, key, override.value(), force_add=True)
    return config


def _nodes(config: DictConfig) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Translator]]]:
    """Yield the path, the content and the known classes of every node in Softlearning's words."""
    for block, classes in CLASSES.items():
        content: Any = config.get(block)
        if not OmegaConf.is_dict(content):
            continue
        tree: Any = OmegaConf.to_container(content, resolve=False)
        places = {block: tree} if block == "workflow" else {f"{block}.{name}": node for name, node in tree.items()}
        for path, node in places.items():
            if isinstance(node, Mapping) and "class_name" in node:
                yield path, node, classes


def _surroundings(config: DictConfig, path: str, node: Mapping[str, Any]) -> Surroundings:
    """Return what the node stands in; an algorithm says the size of a batch itself."""
    buffer = OmegaConf.select(config, "training.phases.0.buffer", default="replay")
    own = as_block(f"{path}.config", node.get("config")).get("batch_size")
    batch_size = own or OmegaConf.select(config, f"buffers.{buffer}.batch_size", default=256)
    has_memory = OmegaConf.select(config, "components.memory") is not None
    features = "${components.memory.hidden_dim}" if has_memory else OBSERVATION
    return Surroundings(features, buffer, batch_size)


def _put(config: DictConfig, path: str, part: Part) -> None:
    """Write a translated node over what stands at its place; of another class, little of that stays."""
    existing = OmegaConf.to_container(OmegaConf.select(config, path), resolve=False)
    assert isinstance(existing, dict)
    is_same = existing.get("_target_") == part.node["_target_"]
    kept: dict[Any, Any] = {
        key: value for key, value in existing.items() if key not in WORDS and (is_same or key in KEPT)
    }
    OmegaConf.update(config, path, handed_down(part.node, kept), merge=False, force_add=True)
    for place_, value in part.elsewhere.items():
        if place_.startswith("training.phases.") and not OmegaConf.select(config, "training.phases"):
            OmegaConf.update(config, "training.phases", [PHASE], force_add=True)
        OmegaConf.update(config, place_, value, force_add=True)


def _is_spoken(key: str, translated: Iterable[str]) -> bool:
    """Return whether a command line's key speaks in Softlearning's words, so that the nodes had it already."""
    words = [VARIANT, *(f"{path}.{word}" for path in translated for word in WORDS)]
    return any(f"{key}.".startswith(f"{word}.") or f"{word}.".startswith(f"{key}.") for word in words)
